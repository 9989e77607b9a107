/* In the mode alloc the core's memory comes from here, so that the n-th allocation can be made to fail. */
#ifndef SWX_TEST_ALLOC_H
#define SWX_TEST_ALLOC_H

#include <stdbool.h>

/* Makes allocation number `n` (counted from 1, from now on) fail, and, when `forever`, all after it.  0: none fails. */
void swx_alloc_fail_at(unsigned long n, bool forever);

/* Allocations since the last swx_alloc_fail_at. */
unsigned long swx_alloc_count(void);

/* Blocks that are allocated and not freed. */
long swx_alloc_live(void);

#endif
