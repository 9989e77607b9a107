/* What the automaton does with a program, at every chunk size and with each allocation failing.  That programs mean
 * what Python's `re` means is asked in tests/core/test_match.py. */
#include "swx_match.h"
#include "harness.h"
#include "programs.h"
#include "alloc.h"

static swx_match *compiled(const builder *b)
{
    swx_match *match;
    CHECK(match_of(b, &match) == SWX_OK);
    return match;
}

/* a.c|b, (?:a|b)*a[ab]{9}z, \bx, (?m)^k$ */
static builder several(void)
{
    builder b = new_builder();
    uint32_t end = end_of(&b);
    begins(&b, state(&b, SWX_SPLIT, read_of(&b, "b", end),
                     read_of(&b, "a", state(&b, SWX_READ, set_without(&b, ""), read_of(&b, "c", end)))));
    uint32_t out = read_of(&b, "z", end_of(&b));
    for (int i = 0; i < 9; i++) {
        out = read_of(&b, "ab", out);
    }
    uint32_t loop = state(&b, SWX_SPLIT, read_of(&b, "a", out), 0);
    b.states[loop][2] = read_of(&b, "ab", loop);
    begins(&b, loop);
    begins(&b, state(&b, SWX_ASSERT, SWX_AT_BOUNDARY, read_of(&b, "x", end_of(&b))));
    begins(&b, state(&b, SWX_ASSERT, SWX_AT_LINE_BEGIN,
                     read_of(&b, "k", state(&b, SWX_ASSERT, SWX_AT_LINE_END, end_of(&b)))));
    return b;
}

static swx_status feed_chunks(swx_match *match, const uint8_t *bytes, size_t size, size_t chunk, size_t *read,
                              swx_hit *hit)
{
    swx_status status = SWX_MORE;
    *read = 0;
    while (*read < size && status == SWX_MORE) {
        size_t piece = size - *read < chunk ? size - *read : chunk, consumed;
        uint8_t *exact = malloc(piece); /* so that a sanitizer sees a byte too far */
        CHECK(exact);
        memcpy(exact, bytes + *read, piece);
        status = swx_match_feed(match, exact, piece, &consumed, hit);
        free(exact);
        CHECK(status == SWX_MORE ? consumed == piece : consumed <= piece);
        *read += consumed;
    }
    return status;
}

/* A truncated sequence is known to be one a byte late; what follows the hit inside of it is remembered. */
static void test_hit_inside_a_broken_sequence(void)
{
    builder b = new_builder();
    begins(&b, state(&b, SWX_READ, set_without(&b, "z"), end_of(&b)));
    swx_match *match = compiled(&b);
    swx_hit hit;
    size_t consumed;
    const uint8_t *text = (const uint8_t *)"x\xf0\x9f\x98|";
    CHECK(swx_match_feed(match, text, 1, &consumed, &hit) == SWX_OK && hit.end == 1);
    CHECK(swx_match_feed(match, text + 1, 3, &consumed, &hit) == SWX_MORE && consumed == 3);
    for (uint64_t i = 0; i < 3; i++) {
        CHECK(swx_match_feed(match, text + 4, 1, &consumed, &hit) == SWX_OK);
        CHECK(consumed == 0 && hit.start == 1 + i && hit.end == 2 + i);
    }
    CHECK(swx_match_feed(match, text + 4, 1, &consumed, &hit) == SWX_OK && consumed == 1 && hit.end == 5);
    swx_match_free(match);
}

/* A cache that overflows all the time must answer as a large one does. */
static void test_tiny_cache_changes_nothing(void)
{
    const builder b = several();
    swx_match *small = compiled(&b), *large = compiled(&b);
    unsigned seed = 7, hits = 0;
    swx_match_limit_cache(small, 1);
    for (int round = 0; round < 3000; round++) {
        uint8_t text[40];
        for (size_t i = 0; i < sizeof(text); i++) {
            text[i] = (uint8_t) "aaaaaaaaaacxyz\nk\xc3"[rand_r(&seed) % 17];
        }
        for (size_t at = 0; at < sizeof(text);) {
            swx_hit one, other;
            size_t read_a, read_b;
            swx_status status = swx_match_feed(small, text + at, sizeof(text) - at, &read_a, &one);
            CHECK(swx_match_feed(large, text + at, sizeof(text) - at, &read_b, &other) == status && read_a == read_b);
            CHECK(status != SWX_OK || (one.index == other.index && one.start == other.start && one.end == other.end));
            hits += status == SWX_OK;
            at += read_a;
        }
    }
    CHECK(hits > 100);
    swx_match_free(small);
    swx_match_free(large);
}

/* Skipping must not change an answer, wherever the hit lies in a block and wherever the chunk ends. */
static void test_hits_at_every_place_of_a_block(void)
{
    builder b = new_builder();
    add_text(&b, "needle");
    add_text(&b, "nettle");
    begins(&b, state(&b, SWX_ASSERT, SWX_AT_LINE_BEGIN, text_of(&b, "n\n", end_of(&b))));
    swx_match *match = compiled(&b);
    uint8_t text[120];
    for (size_t place = 0; place + 6 < sizeof(text); place++) {
        for (size_t chunk = 1; chunk <= sizeof(text); chunk += chunk < 20 ? 1 : 25) {
            swx_hit hit;
            size_t read;
            for (size_t k = 0; k < sizeof(text); k++) {
                text[k] = (uint8_t) "ne xc\xc3\n"[(k * k + place) % 7];
            }
            memcpy(text + place, "needle", 6);
            swx_match_reset(match);
            CHECK(feed_chunks(match, text, sizeof(text), chunk, &read, &hit) == SWX_OK);
            CHECK(hit.index == 0 && hit.start == place && hit.end == place + 6 && read == place + 6);
        }
    }
    swx_match_free(match);
}

/* What is no program is refused, and what passes does no harm. */
static void test_broken_programs(void)
{
    const builder b = several();
    size_t count, refused = 0;
    uint32_t *program = program_of(&b, &count);
    swx_match *match;
    for (size_t size = 0; size < count; size++) {
        CHECK(swx_match_new(&match, program, size) == SWX_EINVAL && !match);
    }
    static const uint32_t wrong[] = { 0, 1, 3, 4, 130, 131, 255, 4097, 1u << 16, UINT32_MAX };
    for (size_t at = 0; at < count; at++) {
        uint32_t right = program[at];
        for (size_t i = 0; i < SWX_COUNT(wrong); i++) {
            swx_hit hit;
            size_t consumed;
            program[at] = wrong[i];
            swx_status status = swx_match_new(&match, program, count);
            refused += status == SWX_EINVAL;
            CHECK(status == SWX_OK || status == SWX_EINVAL);
            if (status == SWX_OK) {
                swx_match_feed(match, (const uint8_t *)"aba\xc3\xa9 x\nk\xff zzz", 14, &consumed, &hit);
            }
            swx_match_free(match);
        }
        program[at] = right;
    }
    CHECK(refused > 1000);
    free(program);
}

#ifdef SWX_ALLOC_TEST
static void fail_at(unsigned long n, int forever, bool *done)
{
    const builder b = several();
    size_t consumed, read, count;
    uint32_t *program = program_of(&b, &count);
    swx_match *match;
    swx_hit hit = { 0 };
    const uint8_t *text = (const uint8_t *)"--- ccx acc-- cde -- \xc3\x80 \xe2\x82 c acc ck";
    long before = swx_alloc_live();
    swx_alloc_fail_at(n, forever);
    swx_status status = swx_match_new(&match, program, count);
    if (status == SWX_OK) {
        status = feed_chunks(match, text, strlen((const char *)text), 3, &read, &hit);
        *done = swx_alloc_count() < n;
        if (status == SWX_ENOMEM) {
            CHECK(swx_match_feed(match, text, 1, &consumed, &hit) == SWX_ENOMEM); /* sticky */
            swx_alloc_fail_at(0, 0);
            swx_match_reset(match);
            CHECK(swx_match_feed(match, text, strlen((const char *)text), &consumed, &hit) == SWX_OK);
        }
        CHECK(hit.end == 11);
    } else {
        CHECK(status == SWX_ENOMEM && match == NULL);
    }
    swx_alloc_fail_at(0, 0);
    swx_match_free(match);
    CHECK(swx_alloc_live() == before);
    free(program);
}

static void test_every_allocation_may_fail(void)
{
    for (int forever = 0; forever < 2; forever++) {
        bool done = false;
        for (unsigned long n = 1; !done; n++) {
            fail_at(n, forever, &done);
            CHECK(n < 1000);
        }
    }
}
#else
static void test_every_allocation_may_fail(void) {}
#endif

TEST_MAIN(test_hit_inside_a_broken_sequence, test_tiny_cache_changes_nothing, test_hits_at_every_place_of_a_block,
          test_broken_programs, test_every_allocation_may_fail)
