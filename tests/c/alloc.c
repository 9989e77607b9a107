/* The counting and failing allocator; the Makefile gives its names to the core's calls of malloc and its like. */
#include "alloc.h"

#include <stdatomic.h>
#include <stdlib.h>

static atomic_ulong asked, fail_at;
static atomic_bool fail_forever;
static atomic_long live;

static bool refuse(void)
{
    unsigned long now = atomic_fetch_add(&asked, 1) + 1, at = fail_at;
    return at && (now == at || (now > at && fail_forever));
}

static void *counted(void *memory)
{
    live += memory != NULL;
    return memory;
}

void *swx_malloc(size_t size) { return refuse() ? NULL : counted(malloc(size)); }
void *swx_calloc(size_t count, size_t size) { return refuse() ? NULL : counted(calloc(count, size)); }

void *swx_realloc(void *old, size_t size)
{
    void *memory = refuse() ? NULL : realloc(old, size);
    return old ? memory : counted(memory);
}

void swx_free(void *memory)
{
    live -= memory != NULL;
    free(memory);
}

void swx_alloc_fail_at(unsigned long n, bool forever)
{
    fail_at = n;
    fail_forever = forever;
    asked = 0;
}

unsigned long swx_alloc_count(void) { return asked; }
long swx_alloc_live(void) { return live; }
