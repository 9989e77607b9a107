/* swx_alloc.h: the allocator seam.  All memory of the core comes from here.
 *
 * Product builds call malloc and friends directly.  With -DSWX_ALLOC_TEST every call is counted and the
 * n-th can be made to fail, so that the tests walk through every error path of every room.
 * swx_free(NULL) is legal.  Sizes of 0 return a unique pointer that must be freed.
 */
#ifndef SWX_ALLOC_H
#define SWX_ALLOC_H

#include <stddef.h>
#include <stdlib.h>

#ifdef SWX_ALLOC_TEST
void *swx_malloc(size_t size);
void *swx_calloc(size_t count, size_t size);
void *swx_realloc(void *old, size_t size);
void swx_free(void *memory);

/* Makes allocation number `n` (counted from 1, from now on) fail, and, when `forever`, all after it.
 * n = 0 turns failing off.  Resets the counter. */
void swx_alloc_fail_at(unsigned long n, int forever);

/* Allocations asked for since the last swx_alloc_fail_at. */
unsigned long swx_alloc_count(void);

/* Blocks that are allocated and not freed, for leak checks. */
long swx_alloc_live(void);
#else
static inline void *swx_malloc(size_t size) { return malloc(size ? size : 1); }
static inline void *swx_calloc(size_t count, size_t size) { return count && size ? calloc(count, size) : calloc(1, 1); }
static inline void *swx_realloc(void *old, size_t size) { return realloc(old, size ? size : 1); }
static inline void swx_free(void *memory) { free(memory); }
#endif

#endif
