/* The prefilter. */
#include "swx_skip.h"

#include <string.h>

#if defined(__x86_64__)
#include <tmmintrin.h>
#endif

void swx_byte_set_add_range(swx_byte_set *set, unsigned low, unsigned high)
{
    for (unsigned byte = low; byte <= high; byte++) {
        swx_byte_set_add(set, byte);
    }
}

void swx_skip_init(swx_skip *skip)
{
    memset(skip, 0, sizeof(*skip));
}

/* Patterns that begin alike share a bucket, so that the buckets stay narrow. */
static unsigned choose_bucket(swx_skip *skip, const swx_byte_set *first)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        if (swx_byte_set_has(first, byte) && skip->allowed[0][byte]) {
            return (unsigned)__builtin_ctz(skip->allowed[0][byte]);
        }
    }
    return skip->buckets_used++ % 8;
}

void swx_skip_add(swx_skip *skip, const swx_byte_set sets[SWX_SKIP_DEPTH])
{
    uint8_t bit = (uint8_t)(1u << choose_bucket(skip, &sets[0]));
    for (unsigned depth = 0; depth < SWX_SKIP_DEPTH; depth++) {
        for (unsigned byte = 0; byte < 256; byte++) {
            if (swx_byte_set_has(&sets[depth], byte)) {
                skip->allowed[depth][byte] |= bit;
                skip->nibbles[depth][0][byte & 15] |= bit;
                skip->nibbles[depth][1][byte >> 4] |= bit;
            }
        }
    }
}

/* How often a random place of a terminal's output would be a candidate: printable ASCII weighs most. */
static double density(const swx_skip *skip)
{
    double sum = 0;
    for (unsigned bucket = 0; bucket < 8; bucket++) {
        double product = 1;
        for (unsigned depth = 0; depth < SWX_SKIP_DEPTH; depth++) {
            double share = 0;
            for (unsigned byte = 0; byte < 256; byte++) {
                double weight = byte >= ' ' && byte < 127 ? 0.9 / 95 : 0.1 / 161;
                share += skip->allowed[depth][byte] >> bucket & 1 ? weight : 0;
            }
            product *= share;
        }
        sum += product;
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

static size_t find_bytewise(const swx_skip *skip, const uint8_t *bytes, size_t from, size_t size)
{
    size_t at = from;
    for (; size - at >= SWX_SKIP_DEPTH; at++) {
        if (skip->allowed[0][bytes[at]] & skip->allowed[1][bytes[at + 1]] & skip->allowed[2][bytes[at + 2]]) {
            return at;
        }
    }
    for (; at < size; at++) {
        unsigned second = at + 1 < size ? skip->allowed[1][bytes[at + 1]] : 0xFF;
        if (skip->allowed[0][bytes[at]] & second) {
            return at;
        }
    }
    return size;
}

#if defined(__x86_64__)
__attribute__((target("ssse3"))) static inline __m128i buckets_at(const swx_skip *skip, unsigned depth, const uint8_t *bytes)
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
__attribute__((target("ssse3"))) static size_t find_vector(const swx_skip *skip, const uint8_t *bytes, size_t from, size_t size)
{
    size_t at = from;
    for (; size - at >= 16 + SWX_SKIP_DEPTH - 1; at += 16) {
        __m128i all = _mm_and_si128(buckets_at(skip, 0, bytes + at),
                                    _mm_and_si128(buckets_at(skip, 1, bytes + at + 1), buckets_at(skip, 2, bytes + at + 2)));
        unsigned hits = ~(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(all, _mm_setzero_si128())) & 0xFFFF;
        for (; hits; hits &= hits - 1) {
            size_t place = at + (unsigned)__builtin_ctz(hits);
            if (skip->allowed[0][bytes[place]] & skip->allowed[1][bytes[place + 1]] & skip->allowed[2][bytes[place + 2]]) {
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
