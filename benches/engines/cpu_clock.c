/* libspecds for benchmarks on busy machines: a step took what the process's threads took, not the clock. */
#include "specds.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static double began;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void *function(const char *name) {
    return dlsym(dlopen(getenv("SPECDS_LIBRARY"), RTLD_NOW | RTLD_LOCAL), name);
}

#define FORWARD(type, name, parameters, arguments) \
    type name parameters {                         \
        static type (*call) parameters;            \
        if (!call) {                               \
            *(void **) &call = function(#name);    \
        }                                          \
        return call arguments;                     \
    }

typedef specds_drafter drafter;
FORWARD(uint32_t, specds_abi, (void), ())
FORWARD(drafter *, specds_open, (const char *o, uint32_t n, const char *const *t), (o, n, t))
FORWARD(int32_t, specds_num_predictions, (drafter * d), (d))
FORWARD(int32_t, specds_observe_predictions, (drafter * d, const uint32_t *p, size_t s, size_t n, size_t k), (d, p, s, n, k))
FORWARD(int32_t, specds_end, (drafter * d, uint32_t s, uint64_t g, const uint32_t *t, size_t n), (d, s, g, t, n))
FORWARD(int32_t, specds_stats, (drafter * d, char *b, size_t s), (d, b, s))
FORWARD(const char *, specds_last_error, (void), ())
FORWARD(void, specds_close, (drafter * d), (d))

int32_t specds_draft(drafter *d, const specds_row *r, size_t n, size_t w, uint32_t *t, size_t s, size_t *l) {
    static int32_t (*call)(drafter *, const specds_row *, size_t, size_t, uint32_t *, size_t, size_t *);
    if (!call) {
        *(void **) &call = function("specds_draft");
    }
    const int32_t status = call(d, r, n, w, t, s, l);
    began = now();
    return status;
}

int32_t specds_observe_step(drafter *d, double seconds) {
    static int32_t (*call)(drafter *, double);
    if (!call) {
        *(void **) &call = function("specds_observe_step");
    }
    (void) seconds;
    return call(d, now() - began);
}
