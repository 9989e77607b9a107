/* A test program is a list of functions and a main of one line: TEST_MAIN(test_a, test_b).
 * CHECK prints what failed and ends the program with status 1; a program that returns prints "N passed, 0 failed". */
#ifndef SWX_TEST_HARNESS_H
#define SWX_TEST_HARNESS_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
