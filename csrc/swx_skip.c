/* The prefilter. */
#include "swx_skip.h"

#include <string.h>

#if defined(__x86_64__)
#include <tmmintrin.h>
#endif

/* The half bytes that a set of bytes allows. */
static void halves_of(const uint32_t set[8], uint16_t halves[2])
{
    uint32_t low = 0, high = 0;
    for (unsigned word = 0; word < 8; word++) {
        low |= set[word] | set[word] >> 16;
        high |= (set[word] & 0xFFFF ? 1u : 0u) << 2 * word | (set[word] >> 16 ? 2u : 0u) << 2 * word;
    }
    halves[0] = (uint16_t)low;
    halves[1] = (uint16_t)high;
}

/* How much a bucket would let pass if it also held a pattern with these halves. */
static uint32_t load_with(uint16_t bucket[SWX_SKIP_FAST][2], uint16_t halves[SWX_SKIP_FAST][2])
{
    uint32_t load = 1;
    for (unsigned depth = 0; depth < SWX_SKIP_FAST; depth++) {
        load *= (uint32_t)__builtin_popcount(bucket[depth][0] | halves[depth][0]);
        load *= (uint32_t)__builtin_popcount(bucket[depth][1] | halves[depth][1]);
    }
    return load;
}

/* The bucket that the pattern makes worse least.  Patterns that allow much would spoil it for others, so all of these
 * share the last one. */
static unsigned choose_bucket(swx_skip *skip, const uint32_t *sets)
{
    uint16_t none[SWX_SKIP_FAST][2] = { { 0 } }, halves[SWX_SKIP_FAST][2];
    uint32_t best = UINT32_MAX;
    unsigned chosen = 7;
    for (unsigned depth = 0; depth < SWX_SKIP_FAST; depth++) {
        halves_of(sets + 8 * depth, halves[depth]);
    }
    bool wide = load_with(none, halves) > (1u << 24) / 100;
    for (unsigned bucket = 0; bucket < 7 && !wide; bucket++) {
        uint32_t worse = load_with(skip->halves[bucket], halves) - skip->loads[bucket];
        if (worse < best) {
            best = worse;
            chosen = bucket;
        }
    }
    skip->loads[chosen] = load_with(skip->halves[chosen], halves);
    for (unsigned depth = 0; depth < SWX_SKIP_FAST; depth++) {
        skip->halves[chosen][depth][0] |= halves[depth][0];
        skip->halves[chosen][depth][1] |= halves[depth][1];
    }
    return chosen;
}

static void allow(swx_skip *skip, unsigned depth, unsigned byte, uint8_t bit)
{
    skip->allowed[depth][byte] |= bit;
    if (depth < SWX_SKIP_FAST) {
        skip->nibbles[depth][0][byte & 15] |= bit;
        skip->nibbles[depth][1][byte >> 4] |= bit;
    }
}

void swx_skip_add(swx_skip *skip, const uint32_t sets[SWX_SKIP_WORDS])
{
    uint8_t bit = (uint8_t)(1u << choose_bucket(skip, sets));
    for (unsigned depth = 0; depth < SWX_SKIP_DEPTH; depth++) {
        for (unsigned word = 0; word < 8; word++) {
            for (uint32_t bits = sets[8 * depth + word]; bits; bits &= bits - 1) {
                allow(skip, depth, word * 32 + (unsigned)__builtin_ctz(bits), bit);
            }
        }
    }
}

/* How often a random place of a terminal's output would pass the fast test: printable ASCII weighs most. */
static double density(const swx_skip *skip)
{
    double sum = 0, share[SWX_SKIP_FAST][8] = { { 0 } };
    for (unsigned depth = 0; depth < SWX_SKIP_FAST; depth++) {
        for (unsigned byte = 0; byte < 256; byte++) {
            double weight = byte >= ' ' && byte < 127 ? 0.9 / 95 : 0.1 / 161;
            for (unsigned bits = skip->allowed[depth][byte]; bits; bits &= bits - 1) {
                share[depth][__builtin_ctz(bits)] += weight;
            }
        }
    }
    for (unsigned bucket = 0; bucket < 8; bucket++) {
        sum += share[0][bucket] * share[1][bucket] * share[2][bucket];
    }
    return sum;
}

void swx_skip_finish(swx_skip *skip)
{
    skip->useful = density(skip) < 0.15;
#if defined(__x86_64__)
    skip->vector = __builtin_cpu_supports("ssse3");
#endif
}

/* Whether the exact tables allow a match at bytes, of which `size` are known. */
static inline bool is_candidate(const swx_skip *skip, const uint8_t *bytes, size_t size)
{
    size_t most = size < SWX_SKIP_DEPTH ? size : SWX_SKIP_DEPTH;
    unsigned buckets = skip->allowed[0][bytes[0]];
    for (size_t depth = 1; depth < most && buckets; depth++) {
        buckets &= skip->allowed[depth][bytes[depth]];
    }
    return buckets != 0;
}

static size_t find_bytewise(const swx_skip *skip, const uint8_t *bytes, size_t from, size_t size)
{
    for (size_t at = from; at < size; at++) {
        if (skip->allowed[0][bytes[at]] && is_candidate(skip, bytes + at, size - at)) {
            return at;
        }
    }
    return size;
}

#if defined(__x86_64__)
__attribute__((target("ssse3"))) static inline __m128i buckets_at(const swx_skip *skip, unsigned depth,
                                                                  const uint8_t *bytes)
{
    const __m128i low_half = _mm_set1_epi8(0x0F);
    __m128i low_table = _mm_loadu_si128((const __m128i *)(const void *)skip->nibbles[depth][0]);
    __m128i high_table = _mm_loadu_si128((const __m128i *)(const void *)skip->nibbles[depth][1]);
    __m128i block = _mm_loadu_si128((const __m128i *)(const void *)bytes);
    __m128i low = _mm_shuffle_epi8(low_table, _mm_and_si128(block, low_half));
    __m128i high = _mm_shuffle_epi8(high_table, _mm_and_si128(_mm_srli_epi16(block, 4), low_half));
    return _mm_and_si128(low, high);
}

/* Reads 18 bytes per block of 16 places, so it stops early enough. */
__attribute__((target("ssse3"))) static size_t find_vector(const swx_skip *skip, const uint8_t *bytes, size_t from,
                                                           size_t size)
{
    size_t at = from;
    for (; size - at >= 16 + SWX_SKIP_FAST - 1; at += 16) {
        __m128i all =
            _mm_and_si128(buckets_at(skip, 0, bytes + at),
                          _mm_and_si128(buckets_at(skip, 1, bytes + at + 1), buckets_at(skip, 2, bytes + at + 2)));
        unsigned hits = ~(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(all, _mm_setzero_si128())) & 0xFFFF;
        for (; hits; hits &= hits - 1) {
            size_t place = at + (unsigned)__builtin_ctz(hits);
            if (is_candidate(skip, bytes + place, size - place)) {
                return place;
            }
        }
    }
    return find_bytewise(skip, bytes, at, size);
}
#endif

size_t swx_skip_find(const swx_skip *skip, const uint8_t *bytes, size_t from, size_t size)
{
#if defined(__x86_64__)
    if (skip->vector) {
        return find_vector(skip, bytes, from, size);
    }
#endif
    return find_bytewise(skip, bytes, from, size);
}
