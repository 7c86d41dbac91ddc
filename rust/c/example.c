/* Drafts for one request, as an engine would. */
#include "specds.h"

#include <stdio.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, specds_last_error());
    return 1;
}

int main(int argc, char **argv) {
    const char *options = argc > 1 ? argv[1] : "{\"memory_scope\": \"shared\"}";
    if (specds_abi() != SPECDS_ABI) {
        fprintf(stderr, "the library is of another version than the header\n");
        return 1;
    }
    specds_drafter *drafter = specds_open(options, 100, NULL, false, NULL, 0);
    if (!drafter) {
        return failed("open");
    }

    /* The model of this engine counts to nine, again and again. */
    uint32_t tokens[64] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3};
    size_t num_tokens = 12, num_steps = 0;
    while (num_tokens < 40) {
        specds_row row = {.max_tokens = 8, .tokens = tokens, .num_tokens = num_tokens, .min_prob = -1};
        uint32_t draft[8];
        size_t length;
        if (specds_draft(drafter, &row, 1, 8, draft, 8, &length) < 0) {
            return failed("draft");
        }
        /* Verify: take the draft as far as the model agrees, then a token of the model's own. */
        for (size_t i = 0; i <= length; i++) {
            uint32_t own = tokens[num_tokens - 1] % 9 + 1;
            tokens[num_tokens++] = own;
            if (i < length && draft[i] != own) {
                break;
            }
        }
        num_steps++;
    }
    if (specds_end(drafter, 0, 0, tokens, num_tokens) < 0) {
        return failed("end");
    }

    char stats[4096];
    if (specds_stats(drafter, stats, sizeof stats) < 0) {
        return failed("stats");
    }
    printf("%zu tokens in %zu steps\n%s\n", num_tokens - 12, num_steps, stats);
    specds_close(drafter);
    return 0;
}
