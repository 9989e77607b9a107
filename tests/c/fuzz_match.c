/* Patterns, text and cut points from the input; the answer must be the naive matcher's, hit after hit.
 *
 * Input: byte 0: how patterns and text are cut; then patterns separated by 0x01, 0x02, then the text.
 * A text is at most 64 characters, because the naive matcher is cubic. */
#include "harness.h"
#include "naive_match.h"
#include "swx_alloc.h"
#include "swx_dfa.h"

#define MAX_TEXT 64
#define MAX_PATTERNS 4
#define MAX_PATTERN 48

static const swx_range digits[] = { { '0', '9' }, { 0x660, 0x669 } };
static const swx_range words[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' }, { 0xAA, 0xAA }, { 0xC0, 0xD6 },
                                   { 0x660, 0x669 }, { 0x4E00, 0x9FFF } };
static const swx_match_tables tables = { digits, words, SWX_COUNT(digits), SWX_COUNT(words) };

static size_t split(swx_pattern *patterns, const uint8_t *bytes, size_t size)
{
    size_t count = 0, start = 0;
    for (size_t at = 0; at <= size && count < MAX_PATTERNS; at++) {
        if (at == size || bytes[at] == 1) {
            patterns[count].bytes = bytes + start;
            patterns[count++].size = at - start < MAX_PATTERN ? at - start : MAX_PATTERN;
            start = at + 1;
        }
    }
    return count;
}

/* Repeats of repeats are cubed by the naive matcher, so bounds are kept small. */
static bool cheap(const swx_regex *regex)
{
    for (size_t i = 1; i < regex->node_count; i++) {
        const swx_node *node = &regex->nodes[i];
        if (node->kind == SWX_NODE_REPEAT && (node->min > 30 || (node->max > 30 && node->max != SWX_UNLIMITED))) {
            return false;
        }
    }
    return true;
}

/* Feeds in pieces whose sizes come from `cuts`. */
static swx_status feed_cut(swx_match *match, const uint8_t *bytes, size_t size, unsigned cuts, size_t *read, swx_hit *hit)
{
    swx_status status = SWX_MORE;
    for (*read = 0; *read < size && status == SWX_MORE;) {
        size_t piece = 1 + (cuts + *read * 7) % (1 + cuts % 23), consumed;
        piece = piece < size - *read ? piece : size - *read;
        uint8_t *copy = malloc(piece); /* so that the sanitizer sees a byte too far */
        memcpy(copy, bytes + *read, piece);
        status = swx_match_feed(match, copy, piece, &consumed, hit);
        free(copy);
        CHECK(consumed == piece || (status == SWX_OK && consumed <= piece));
        *read += consumed;
    }
    return status;
}

static void compare(swx_match *match, const swx_regex *regex, const uint32_t *roots, size_t count, const uint8_t *text,
                    size_t size, unsigned cuts)
{
    size_t done = 0, fed = 0; /* the naive matcher starts anew at done; the other has read up to fed */
    for (int rounds = 0; rounds < 40; rounds++) {
        swx_hit expected, hit;
        size_t read;
        bool found = naive_search(regex, roots, count, text + done, size - done, done, &expected);
        swx_status status = feed_cut(match, text + fed, size - fed, cuts, &read, &hit);
        if (status == SWX_MORE) {
            size_t none;
            status = swx_match_feed(match, text, 0, &none, &hit); /* a hit may be in what a broken sequence left */
            CHECK(none == 0);
        }
        CHECK(status == (found ? SWX_OK : SWX_MORE));
        if (!found) {
            return;
        }
        CHECK(hit.index == expected.index && hit.start == expected.start && hit.end == expected.end);
        fed += read;
        done = (size_t)hit.end;
        CHECK(done <= fed && fed - done <= 3);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    swx_pattern patterns[MAX_PATTERNS];
    uint32_t roots[MAX_PATTERNS];
    swx_match *match = NULL;
    swx_regex regex = { .tables = &tables };
    swx_error err = { 0 };
    size_t bad = 0;
    if (size < 2) {
        return 0;
    }
    const uint8_t *text = memchr(bytes + 1, 2, size - 1);
    size_t patterns_size = text ? (size_t)(text - bytes - 1) : size - 1;
    size_t text_size = text ? size - 2 - patterns_size : 0;
    size_t count = split(patterns, bytes + 1, patterns_size);
    swx_status status = swx_match_new(&match, patterns, count, &tables, &bad, &err);
    if (status != SWX_OK) {
        CHECK(match == NULL && err.status == status && err.text && bad < count && err.position <= patterns[bad].size);
        CHECK(status == SWX_EINVAL || status == SWX_EUNSUPPORTED || status == SWX_ELIMIT);
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        CHECK(swx_regex_parse(&regex, patterns[i], &roots[i], NULL) == SWX_OK);
    }
    if (cheap(&regex) && text) {
        compare(match, &regex, roots, count, text + 1, text_size < MAX_TEXT ? text_size : MAX_TEXT, bytes[0]);
    }
    swx_regex_free(&regex);
    swx_match_free(match);
    return 0;
}
