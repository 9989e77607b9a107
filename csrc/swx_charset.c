/* Sets of code points as ranges. */
#include "swx_charset.h"

#include <string.h>

#include "swx_alloc.h"

void swx_charset_free(swx_charset *set)
{
    swx_free(set->ranges);
    *set = (swx_charset){ 0 };
}

static swx_status reserve(swx_charset *set, size_t more)
{
    if (set->capacity - set->count >= more) {
        return SWX_OK;
    }
    size_t capacity = set->capacity ? set->capacity * 2 : 16;
    while (capacity - set->count < more) {
        capacity *= 2;
    }
    swx_range *ranges = swx_realloc(set->ranges, capacity * sizeof(*ranges));
    if (!ranges) {
        return SWX_ENOMEM;
    }
    set->ranges = ranges;
    set->capacity = capacity;
    return SWX_OK;
}

swx_status swx_charset_add(swx_charset *set, uint32_t low, uint32_t high)
{
    swx_status status = reserve(set, 1);
    if (status == SWX_OK) {
        set->ranges[set->count++] = (swx_range){ low, high };
    }
    return status;
}

swx_status swx_charset_add_all(swx_charset *set, const swx_range *ranges, size_t count)
{
    swx_status status = reserve(set, count);
    if (status == SWX_OK && count) {
        memcpy(set->ranges + set->count, ranges, count * sizeof(*ranges));
        set->count += count;
    }
    return status;
}

static int by_low(const void *left, const void *right)
{
    const swx_range *a = left, *b = right;
    return (a->low > b->low) - (a->low < b->low);
}

void swx_charset_normalise(swx_charset *set)
{
    size_t kept = 0;
    bool sorted = true;
    for (size_t i = 1; i < set->count && sorted; i++) {
        sorted = set->ranges[i - 1].low <= set->ranges[i].low;
    }
    if (!sorted) {
        qsort(set->ranges, set->count, sizeof(*set->ranges), by_low);
    }
    for (size_t i = 0; i < set->count; i++) {
        swx_range range = set->ranges[i];
        if (kept && range.low <= set->ranges[kept - 1].high + 1) {
            if (range.high > set->ranges[kept - 1].high) {
                set->ranges[kept - 1].high = range.high;
            }
        } else {
            set->ranges[kept++] = range;
        }
    }
    set->count = kept;
}

swx_status swx_charset_add_inverse(swx_charset *set, const swx_range *ranges, size_t count)
{
    uint32_t next = 0;
    swx_status status = reserve(set, count + 1);
    if (status != SWX_OK) {
        return status;
    }
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].low > next) {
            set->ranges[set->count++] = (swx_range){ next, ranges[i].low - 1 };
        }
        next = ranges[i].high + 1;
    }
    if (next <= SWX_LAST_CODE_POINT) {
        set->ranges[set->count++] = (swx_range){ next, SWX_LAST_CODE_POINT };
    }
    return SWX_OK;
}

swx_status swx_charset_invert(swx_charset *set)
{
    swx_charset inverse = { 0 };
    swx_status status = swx_charset_add_inverse(&inverse, set->ranges, set->count);
    if (status == SWX_OK) {
        swx_charset_free(set);
        *set = inverse;
    }
    return status;
}

bool swx_ranges_have(const swx_range *ranges, size_t count, uint32_t code_point)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges[middle].high < code_point) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < count && ranges[low].low <= code_point;
}
