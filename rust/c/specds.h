// specds: drafts for engines that are not written in Python. Made from rust/c by `make c-library`.

#ifndef SPECDS_H
#define SPECDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Rises with each change that a caller would notice.
#define SPECDS_ABI 2

// An argument or the configuration is wrong; nothing was done.
#define SPECDS_REFUSED -1

// A defect of the library; the drafter drafts nothing from now on.
#define SPECDS_BROKEN -2

// A drafter. Threads may share it: calls wait for each other.
typedef struct specds_drafter specds_drafter;

// A request that is in the batch of this step.
typedef struct specds_row {
  // Where the engine keeps the request.
  uint32_t slot;
  // The most tokens to draft.
  uint32_t max_tokens;
  // Which request of the slot it is: another number, another request.
  uint64_t generation;
  // The request's tokens so far, the one that was just sampled included.
  const uint32_t *tokens;
  size_t num_tokens;
  // How many tokens of the request come before these; 0 if these are all.
  size_t start;
  // Whose request it is, for `"memory_scope": "tenant"`; may be NULL.
  const char *tenant;
  // The least probability of a path; below 0 or not finite, `min_prob` of the options holds.
  float min_prob;
} specds_row;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The ABI of the library; compare it with `SPECDS_ABI`.
uint32_t specds_abi(void);

// Opens a drafter, or returns NULL if that fails. `options` is the JSON object of docs/engines/index.md.
//
// `token_texts` are the texts of all `vocab_size` tokens as the tokenizer's file has them: they reject a
// datastore of another tokenizer. NULL skips the check. `times_steps` reports that you call
// `specds_observe_step` after each step; by default, drafts then depend on the measured cost of a step.
struct specds_drafter *specds_open(const char *options,
                                   uint32_t vocab_size,
                                   const char *const *token_texts,
                                   bool times_steps);

// Drafts a chain for each row; requests that are absent for 64 steps have ended.
//
// Row r gets `lengths[r]` tokens from `token_ids[r * width]` on. `size` is how many `token_ids` has room for.
int32_t specds_draft(struct specds_drafter *drafter,
                     const struct specds_row *rows,
                     size_t num_rows,
                     size_t width,
                     uint32_t *token_ids,
                     size_t size,
                     size_t *lengths);

// Tells how long the step with the last drafts took; leave out steps that also read a prompt.
int32_t specds_observe_step(struct specds_drafter *drafter, double seconds);

// How many of the model's likeliest tokens at each position it uses; 0 if none.
int32_t specds_num_predictions(struct specds_drafter *drafter);

// Takes the model's `k` likeliest tokens, likeliest first, at `num_positions` positions of each row of the last
// drafts: that of its last token, then those of its draft. Of shape `(rows, num_positions, k)`, `size` in all.
int32_t specds_observe_predictions(struct specds_drafter *drafter,
                                   const uint32_t *predictions,
                                   size_t size,
                                   size_t num_positions,
                                   size_t k);

// Ends a request with its whole text, which goes into the memory; NULL if the last draft saw all of it.
int32_t specds_end(struct specds_drafter *drafter,
                   uint32_t slot,
                   uint64_t generation,
                   const uint32_t *tokens,
                   size_t num_tokens);

// Ends all requests.
int32_t specds_end_all(struct specds_drafter *drafter);

// Writes what came of all drafts, and warnings, as a JSON object, and gives its length without the last NUL.
//
// Without a `buffer` only the length.
int32_t specds_stats(struct specds_drafter *drafter,
                     char *buffer,
                     size_t size);

// Why the last call of this thread failed. It is yours until the next call of this thread.
const char *specds_last_error(void);

// Ends all requests and frees the drafter, which no other thread may use any more. NULL is fine.
void specds_close(struct specds_drafter *drafter);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPECDS_H */
