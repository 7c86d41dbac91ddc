// SGLang's n-gram corpus behind functions that ctypes can call; compiled with the sources of its package.
#include <algorithm>
#include <string>
#include <vector>

#include "ngram.h"

using sglang::ngram::Ngram;
using Tokens = std::vector<int32_t>;

extern "C" {

Ngram* ngram_new(size_t max_nodes, size_t depth, const char* match_type, size_t corpus_nodes) {
  sglang::ngram::Param param;
  param.enable = true;
  param.enable_router_mode = false;
  param.min_bfs_breadth = 1;
  param.max_bfs_breadth = 10;
  param.max_trie_depth = depth;
  param.draft_token_num = max_nodes + 1;
  param.external_sam_budget = corpus_nodes;
  param.match_type = match_type;
  return new Ngram(2000000, param);
}

void ngram_delete(Ngram* ngram) { delete ngram; }

void ngram_load(Ngram* ngram, const int32_t* tokens, const int64_t* starts, size_t num_documents) {
  ngram->startExternalCorpusLoad();
  for (size_t i = 0; i < num_documents; i++) {
    ngram->appendExternalCorpusTokens(Tokens(tokens + starts[i], tokens + starts[i + 1]));
  }
  ngram->finishExternalCorpusLoad("corpus");
}

void ngram_insert(Ngram* ngram, const int32_t* tokens, size_t length) {
  ngram->asyncInsert({Tokens(tokens, tokens + length)});
  ngram->synchronize();
}

// A row of `mask` for each token of `drafted`, the first of them the context's last.
void ngram_match(Ngram* ngram, int64_t request, const int32_t* tokens, size_t length, size_t context_length,
                 int32_t* drafted, uint8_t* mask) {
  const auto found = ngram->batchMatch({request}, {Tokens(tokens, tokens + length)}, {context_length});
  std::copy(found.token.begin(), found.token.end(), drafted);
  std::copy(found.mask.begin(), found.mask.end(), mask);
}

void ngram_end(Ngram* ngram, int64_t request) { ngram->eraseMatchState({request}); }

}
