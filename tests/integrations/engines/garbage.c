/* A drafter of garbage: its configuration names the kind. */
#include "specds.h"

#include <stdlib.h>
#include <string.h>

static char kind;
static uint32_t n_vocab;

uint32_t specds_abi(void) { return SPECDS_ABI; }
specds_drafter *specds_open(const char *options, uint32_t vocab_size, const char *const *texts, bool times,
                            const specds_step_time *step_times, size_t num_step_times) {
    (void) texts, (void) times, (void) step_times, (void) num_step_times;
    kind = options[0];
    n_vocab = vocab_size;
    return kind == 'n' ? NULL : (specds_drafter *) &kind; /* none */
}
int32_t specds_draft(specds_drafter *d, const specds_row *rows, size_t num_rows, size_t width,
                     uint32_t *ids, size_t size, size_t *lengths) {
    (void) d, (void) rows;
    for (size_t i = 0; i < size; i++) {
        ids[i] = kind == 'b' ? n_vocab + i : kind == 'e' ? 2 : (uint32_t) rand() % n_vocab; /* beyond, ends, random */
    }
    for (size_t i = 0; i < num_rows; i++) {
        lengths[i] = kind == 'l' ? SIZE_MAX : width; /* long */
    }
    return kind == 'f' ? SPECDS_BROKEN : 0; /* failing */
}
int32_t specds_observe_step(specds_drafter *d, double seconds) { (void) d, (void) seconds; return 0; }
int32_t specds_num_predictions(specds_drafter *d) { (void) d; return 3; }
int32_t specds_observe_predictions(specds_drafter *d, const uint32_t *ids, size_t size, size_t n, size_t k) {
    (void) d, (void) ids, (void) size, (void) n, (void) k;
    return 0;
}
int32_t specds_end(specds_drafter *d, uint32_t slot, uint64_t generation, const uint32_t *ids, size_t size) {
    (void) d, (void) slot, (void) generation, (void) ids, (void) size;
    return 0;
}
int32_t specds_stats(specds_drafter *d, char *buffer, size_t size) { (void) d, (void) buffer, (void) size; return 0; }
const char *specds_last_error(void) { return "garbage"; }
void specds_close(specds_drafter *d) { (void) d; }
