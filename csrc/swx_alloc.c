/* The counting and failing allocator of test builds; empty in the product. */
#include "swx_alloc.h"

#ifdef SWX_ALLOC_TEST

#include <stdatomic.h>
#include <stdbool.h>

static atomic_ulong asked;
static atomic_ulong fail_at;
static atomic_int fail_forever;
static atomic_long live;

static bool refuse(void)
{
    unsigned long now = atomic_fetch_add(&asked, 1) + 1;
    unsigned long at = atomic_load(&fail_at);
    return at && (now == at || (now > at && atomic_load(&fail_forever)));
}

static void *counted(void *memory)
{
    if (memory) {
        atomic_fetch_add(&live, 1);
    }
    return memory;
}

void *swx_malloc(size_t size) { return refuse() ? NULL : counted(malloc(size ? size : 1)); }

void *swx_calloc(size_t count, size_t size)
{
    return refuse() ? NULL : counted(count && size ? calloc(count, size) : calloc(1, 1));
}

void *swx_realloc(void *old, size_t size)
{
    if (refuse()) {
        return NULL;
    }
    void *memory = realloc(old, size ? size : 1);
    return old ? memory : counted(memory);
}

void swx_free(void *memory)
{
    if (memory) {
        atomic_fetch_sub(&live, 1);
    }
    free(memory);
}

void swx_alloc_fail_at(unsigned long n, int forever)
{
    atomic_store(&fail_at, n);
    atomic_store(&fail_forever, forever);
    atomic_store(&asked, 0);
}

unsigned long swx_alloc_count(void) { return atomic_load(&asked); }
long swx_alloc_live(void) { return atomic_load(&live); }

#else
typedef int swx_alloc_is_inline; /* ISO C forbids an empty translation unit */
#endif
