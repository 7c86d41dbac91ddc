// specds: drafts for engines that are not written in Python. Made from rust/c by `make c-library`.

#ifndef SPECDS_H
#define SPECDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Version of the interface, which increases with each incompatible change.
#define SPECDS_ABI 3

// An argument or the configuration is invalid. The call had no effect.
#define SPECDS_REFUSED -1

// The library panicked. The drafter drafts nothing from now on.
#define SPECDS_BROKEN -2

// A drafter. Threads may share it; calls wait for each other.
typedef struct specds_drafter specds_drafter;

// The time of a pass over some tokens.
typedef struct specds_step_time {
  // Number of tokens.
  size_t num_tokens;
  // The time in any unit.
  double seconds;
} specds_step_time;

// A request in the batch of this step.
typedef struct specds_row {
  // The engine's slot of the request.
  uint32_t slot;
  // Maximum number of drafted tokens.
  uint32_t max_tokens;
  // The number of the request within its slot. A new number stands for a new request.
  uint64_t generation;
  // The request's tokens so far, including the one that was just sampled.
  const uint32_t *tokens;
  size_t num_tokens;
  // Number of tokens of the request that precede these; 0 if these are all.
  size_t start;
  // The options of the request as in docs/engines/index.md, a JSON object, the same in each step; may be NULL.
  const char *options;
  // Minimum probability of a path; if it is below 0 or not finite, `min_prob` of the options applies.
  float min_prob;
} specds_row;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the interface version of the library; compare it with `SPECDS_ABI`.
uint32_t specds_abi(void);

// Opens a drafter, or returns NULL if that fails. `options` is the JSON object of docs/engines/index.md.
//
// `token_texts` are the texts of all `vocab_size` tokens as in the tokenizer's file, by which a datastore of another
// tokenizer is rejected. NULL skips the check.
//
// By default, drafts depend on the cost of a step if that is known: from `step_times`, which you have measured, with
// rising numbers of tokens (sizes between two cost as much as the larger one; may be NULL), or if `times_steps` states
// that you call `specds_observe_step` after each step.
struct specds_drafter *specds_open(const char *options,
                                   uint32_t vocab_size,
                                   const char *const *token_texts,
                                   bool times_steps,
                                   const struct specds_step_time *step_times,
                                   size_t num_step_times);

// Drafts a chain for each row; requests that are absent for 64 steps have ended.
//
// Row r gets `lengths[r]` tokens from `token_ids[r * width]` on. `size` is the capacity of `token_ids`.
int32_t specds_draft(struct specds_drafter *drafter,
                     const struct specds_row *rows,
                     size_t num_rows,
                     size_t width,
                     uint32_t *token_ids,
                     size_t size,
                     size_t *lengths);

// Takes the seconds of the step that verified the last drafts. Skip steps that also read a prompt.
int32_t specds_observe_step(struct specds_drafter *drafter, double seconds);

// Returns the number of the model's likeliest tokens at each position that are used; 0 for none.
int32_t specds_num_predictions(struct specds_drafter *drafter);

// Takes the model's `k` likeliest tokens, likeliest first, at `num_positions` positions of each row of the last
// drafts: that of its last token, then those of its draft. `predictions` has shape `(rows, num_positions, k)` and
// `size` elements.
int32_t specds_observe_predictions(struct specds_drafter *drafter,
                                   const uint32_t *predictions,
                                   size_t size,
                                   size_t num_positions,
                                   size_t k);

// Ends a request, whose text goes into the memory. `tokens` is the whole text, or NULL if the last draft saw all of
// it.
int32_t specds_end(struct specds_drafter *drafter,
                   uint32_t slot,
                   uint64_t generation,
                   const uint32_t *tokens,
                   size_t num_tokens);

// Ends all requests.
int32_t specds_end_all(struct specds_drafter *drafter);

// Writes the configuration, the datastore's build and size, counters and warnings as a JSON object, and returns its
// length without the final NUL.
//
// If `buffer` is NULL, only returns the length.
int32_t specds_stats(struct specds_drafter *drafter,
                     char *buffer,
                     size_t size);

// Returns the error of this thread's last call. The text is valid until the next call of this thread.
const char *specds_last_error(void);

// Ends all requests and frees the drafter. No other thread may use it. NULL is allowed.
void specds_close(struct specds_drafter *drafter);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPECDS_H */
