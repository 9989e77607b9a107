/* swx_charset.h: a growing set of code points, as ranges.  Used while patterns are parsed. */
#ifndef SWX_CHARSET_H
#define SWX_CHARSET_H

#include "swx_match.h"

#define SWX_LAST_CODE_POINT 0x10FFFFu

typedef struct {
    swx_range *ranges;
    size_t count, capacity;
} swx_charset;

void swx_charset_free(swx_charset *set);

/* Adds low..high; order and overlap do not matter until swx_charset_normalise.  SWX_OK or SWX_ENOMEM. */
swx_status swx_charset_add(swx_charset *set, uint32_t low, uint32_t high);
swx_status swx_charset_add_all(swx_charset *set, const swx_range *ranges, size_t count);

/* Sorts, and joins what overlaps or touches. */
void swx_charset_normalise(swx_charset *set);

/* Replaces a normalised set by its complement in 0..0x10FFFF. */
swx_status swx_charset_invert(swx_charset *set);

/* Adds everything outside of sorted, disjoint ranges. */
swx_status swx_charset_add_inverse(swx_charset *set, const swx_range *ranges, size_t count);

/* Whether sorted, disjoint ranges hold a code point. */
bool swx_ranges_have(const swx_range *ranges, size_t count, uint32_t code_point);

#endif
