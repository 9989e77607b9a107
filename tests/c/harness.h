/* A test program is a list of functions and a main of one line: TEST_MAIN(test_a, test_b).
 * CHECK prints what failed and ends the program with status 1; a program that returns prints "N passed, 0 failed". */
#ifndef SWX_TEST_HARNESS_H
#define SWX_TEST_HARNESS_H

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "swx.h"

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s: failed: %s\n", __FILE__, __LINE__, __func__, #condition); \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

/* Of this process, and always the same three more: what reads them, "." and "..". */
static inline size_t open_descriptors(void)
{
    DIR *fds = opendir("/proc/self/fd");
    size_t count = 0;
    CHECK(fds);
    while (readdir(fds)) {
        count++;
    }
    closedir(fds);
    return count;
}

/* From then on, until they are given back, only so many more descriptors can be had. */
static struct rlimit limit_of_descriptors;

static inline void take_descriptors_away(rlim_t room)
{
    int next = dup(0);
    close(next);
    CHECK(getrlimit(RLIMIT_NOFILE, &limit_of_descriptors) == 0);
    struct rlimit few = { .rlim_cur = (rlim_t)next + room, .rlim_max = limit_of_descriptors.rlim_max };
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
}

static inline void give_descriptors_back(void) { CHECK(setrlimit(RLIMIT_NOFILE, &limit_of_descriptors) == 0); }

/* ppoll until that time, in nanoseconds of CLOCK_MONOTONIC. */
static inline void poll_until(struct pollfd *fds, nfds_t count, int64_t due)
{
    int64_t left = due - swx_now();
    left = left > 0 ? left : 0;
    ppoll(fds, count, &(struct timespec){ .tv_sec = left / 1000000000, .tv_nsec = left % 1000000000 }, NULL);
}

typedef void (*swx_test)(void);

#define TEST_MAIN(...)                                                      \
    int main(void)                                                          \
    {                                                                       \
        const swx_test tests[] = { __VA_ARGS__ };                           \
        for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {     \
            tests[i]();                                                     \
        }                                                                   \
        printf("%zu passed, 0 failed\n", sizeof(tests) / sizeof(tests[0])); \
        return 0;                                                           \
    }

#endif
