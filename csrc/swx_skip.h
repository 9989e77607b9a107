/* swx_skip.h: finds the next place where a match may start, many bytes at a time.
 *
 * Each pattern says which bytes may be its first, its second, and so on.  Patterns share eight buckets, one bit each; a
 * place is a candidate when one bucket allows each of the bytes there.  With SSSE3 sixteen places are tested at once on
 * three bytes each, by looking up the two halves of a byte in tables of sixteen (the idea is "Teddy", of Hyperscan);
 * what passes is checked against the exact tables of all SWX_SKIP_DEPTH bytes.
 */
#ifndef SWX_SKIP_H
#define SWX_SKIP_H

#include "swx.h"

#define SWX_SKIP_DEPTH 8 /* bytes that a pattern tells about itself, at most 8 */
#define SWX_SKIP_FAST 3  /* of these, how many are tested for every place */
#define SWX_SKIP_WORDS (8 * SWX_SKIP_DEPTH)

typedef struct {
    uint8_t allowed[SWX_SKIP_DEPTH][256]; /* per byte the buckets that allow it */
    uint8_t nibbles[SWX_SKIP_FAST][2][16];
    uint16_t halves[8][SWX_SKIP_FAST][2]; /* per bucket which half bytes it allows: bit n for the value n */
    uint32_t loads[8];                    /* per bucket how much it lets pass, of 256^SWX_SKIP_FAST */
    bool useful; /* false when candidates would be so dense that looking for them does not pay */
    bool vector; /* the processor has SSSE3 */
} swx_skip;

/* Adds a pattern to one that is all zeros, by what its first bytes may be: SWX_SKIP_DEPTH sets of 256 bits. */
void swx_skip_add(swx_skip *skip, const uint32_t sets[SWX_SKIP_WORDS]);

/* After the last pattern. */
void swx_skip_finish(swx_skip *skip);

/* The first candidate at or after `from`, or size.  A place close to the end is judged by the bytes that are there. */
size_t swx_skip_find(const swx_skip *skip, const uint8_t *bytes, size_t from, size_t size);

#endif
