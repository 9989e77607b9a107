/* naive_match.h: the matcher of swx_match.h written as its definition reads, for tests to compare with.
 *
 * After each character, for each start, for each pattern: does the tree match exactly from the start to here?  Sets of
 * positions are bit sets, so texts have at most NAIVE_MAX - 1 characters.  Only the parser is shared with the product.
 */
#ifndef SWX_TEST_NAIVE_MATCH_H
#define SWX_TEST_NAIVE_MATCH_H

#include <string.h>

#include "swx_match.h"
#include "swx_regex.h"

#define NAIVE_MAX 320

typedef struct {
    uint64_t bits[NAIVE_MAX / 64];
} places;

typedef struct {
    uint32_t units[NAIVE_MAX]; /* code points; an invalid byte b is 0xDC00 + b */
    size_t ends[NAIVE_MAX + 1]; /* ends[i]: byte offset before unit i */
    size_t count;
} naive_text;

static inline bool places_has(const places *set, size_t at) { return set->bits[at / 64] >> (at % 64) & 1; }
static inline void places_add(places *set, size_t at) { set->bits[at / 64] |= UINT64_C(1) << (at % 64); }
static inline bool places_merge(places *set, const places *other)
{
    bool grown = false;
    for (size_t i = 0; i < NAIVE_MAX / 64; i++) {
        grown |= (other->bits[i] & ~set->bits[i]) != 0;
        set->bits[i] |= other->bits[i];
    }
    return grown;
}

/* Length of the longest prefix of a well-formed sequence at bytes; *whole when the sequence is complete. */
static size_t naive_sequence(const uint8_t *bytes, size_t size, uint32_t *value, bool *whole)
{
    uint8_t lead = bytes[0];
    size_t need = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    size_t have = need > 0;
    *value = need == 1 ? lead : lead & (0x7Fu >> need);
    for (; have < need && have < size; have++) {
        uint8_t byte = bytes[have];
        uint8_t low = have == 1 && lead == 0xE0 ? 0xA0 : have == 1 && lead == 0xF0 ? 0x90 : 0x80;
        uint8_t high = have == 1 && lead == 0xED ? 0x9F : have == 1 && lead == 0xF4 ? 0x8F : 0xBF;
        if (byte < low || byte > high) {
            break;
        }
        *value = *value << 6 | (byte & 0x3F);
    }
    *whole = need && have == need;
    return have;
}

/* Units of the bytes; a sequence that the end of the bytes cuts is left out. */
static inline void naive_decode(naive_text *text, const uint8_t *bytes, size_t size)
{
    size_t at = 0;
    text->count = 0;
    text->ends[0] = 0;
    while (at < size && text->count < NAIVE_MAX - 1) {
        uint32_t value;
        bool whole;
        size_t length = naive_sequence(bytes + at, size - at, &value, &whole);
        if (!whole && length && at + length == size) {
            break;
        }
        if (!whole) {
            value = 0xDC00u + bytes[at];
            length = 1;
        }
        text->units[text->count++] = value;
        at += length;
        text->ends[text->count] = at;
    }
}

static bool naive_word(const swx_regex *regex, uint32_t class_plus_1, const naive_text *text, size_t at, size_t end)
{
    swx_class word = regex->classes[class_plus_1 - 1];
    return at < end && swx_ranges_have(regex->ranges.ranges + word.first, word.count, text->units[at]);
}

static bool naive_holds(const swx_regex *regex, uint32_t assertion, const naive_text *text, size_t at, size_t end)
{
    switch (assertion) {
    case SWX_AT_BEGIN: return at == 0;
    case SWX_AT_LINE_BEGIN: return at == 0 || text->units[at - 1] == '\n';
    case SWX_AT_END: return at == end;
    case SWX_AT_LAST_LINE: return at == end || (at + 1 == end && text->units[at] == '\n');
    case SWX_AT_LINE_END: return at == end || text->units[at] == '\n';
    default: break;
    }
    bool ascii = assertion >= SWX_AT_ASCII_BOUNDARY;
    uint32_t word = ascii ? regex->ascii_word : regex->unicode_word;
    bool boundary = (at > 0 && naive_word(regex, word, text, at - 1, end)) != naive_word(regex, word, text, at, end);
    return boundary == (assertion == SWX_AT_BOUNDARY || assertion == SWX_AT_ASCII_BOUNDARY) && end > 0;
}

static places naive_node(const swx_regex *regex, uint32_t index, places from, const naive_text *text, size_t end);

static places naive_before(const swx_regex *regex, uint32_t last, places from, const naive_text *text, size_t end)
{
    if (regex->nodes[last].before) {
        from = naive_before(regex, regex->nodes[last].before, from, text, end);
    }
    return naive_node(regex, last, from, text, end);
}

static places naive_repeat(const swx_regex *regex, const swx_node *node, places from, const naive_text *text, size_t end)
{
    for (uint32_t i = 0; i < node->min; i++) {
        places next = naive_node(regex, node->child, from, text, end);
        if (memcmp(&next, &from, sizeof(from)) == 0) {
            break;
        }
        from = next;
    }
    places all = from;
    for (uint32_t i = node->min; node->max == SWX_UNLIMITED || i < node->max; i++) {
        from = naive_node(regex, node->child, from, text, end);
        if (!places_merge(&all, &from)) {
            break;
        }
    }
    return all;
}

/* Where a match of the node may end, given where it may begin. */
static places naive_node(const swx_regex *regex, uint32_t index, places from, const naive_text *text, size_t end)
{
    const swx_node *node = &regex->nodes[index];
    places to = { { 0 } };
    if (node->kind == SWX_NODE_EMPTY) {
        return from;
    }
    if (node->kind == SWX_NODE_CAT) {
        return naive_before(regex, node->child, from, text, end);
    }
    if (node->kind == SWX_NODE_REPEAT) {
        return naive_repeat(regex, node, from, text, end);
    }
    if (node->kind == SWX_NODE_ALT) {
        for (uint32_t branch = node->child; branch; branch = regex->nodes[branch].before) {
            places ends = naive_node(regex, branch, from, text, end);
            places_merge(&to, &ends);
        }
        return to;
    }
    for (size_t at = 0; at <= end; at++) {
        if (!places_has(&from, at)) {
            continue;
        }
        if (node->kind == SWX_NODE_ASSERT) {
            if (naive_holds(regex, node->value, text, at, end)) {
                places_add(&to, at);
            }
        } else if (at < end) {
            uint32_t unit = text->units[at];
            bool same = node->kind == SWX_NODE_CHAR ? unit == node->value
                                                    : swx_ranges_have(regex->ranges.ranges + regex->classes[node->value].first,
                                                                      regex->classes[node->value].count, unit);
            if (same) {
                places_add(&to, at + 1);
            }
        }
    }
    return to;
}

/* The hit in the bytes, or false.  roots were parsed into regex.  hit offsets count from `base`. */
static inline bool naive_search(const swx_regex *regex, const uint32_t *roots, size_t count, const uint8_t *bytes, size_t size,
                                uint64_t base, swx_hit *hit)
{
    naive_text text;
    naive_decode(&text, bytes, size);
    for (size_t end = 0; end <= text.count; end++) {
        for (size_t start = 0; start <= end; start++) {
            for (size_t i = 0; i < count; i++) {
                places from = { { 0 } };
                places_add(&from, start);
                places to = naive_node(regex, roots[i], from, &text, end);
                if (places_has(&to, end)) {
                    *hit = (swx_hit){ i, base + text.ends[start], base + text.ends[end] };
                    return true;
                }
            }
        }
    }
    return false;
}

#endif
