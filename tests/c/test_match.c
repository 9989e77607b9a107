#include "swx_match.h"
#include "harness.h"
#include "naive_match.h"
#include "swx_alloc.h"
#include "swx_alphabet.h"
#include "swx_dfa.h"
#include "swx_prefix.h"

static const swx_range digits[] = { { '0', '9' }, { 0x660, 0x669 } };
static const swx_range words[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' }, { 0xC0, 0xD6 }, { 0x660, 0x669 } };
static const swx_match_tables tables = { digits, words, SWX_COUNT(digits), SWX_COUNT(words) };

#define MOST 8

static size_t list_of(swx_pattern *patterns, const char *const *texts)
{
    size_t count = 0;
    for (; texts[count]; count++) {
        patterns[count] = (swx_pattern){ (const uint8_t *)texts[count], strlen(texts[count]) };
    }
    return count;
}

static swx_match *compiled(const char *const *texts)
{
    swx_pattern patterns[MOST];
    swx_match *match;
    size_t count = list_of(patterns, texts);
    CHECK(swx_match_new(&match, patterns, count, &tables, NULL, NULL) == SWX_OK);
    return match;
}

/* One table of cases, run on the product at every chunk size and on the naive matcher. */
typedef struct {
    const char *patterns[MOST];
    const char *text;
    int index, start, end; /* index -1: no hit */
} example;

static const example examples[] = {
    /* literals: first end, then first start, then order */
    { { "foo" }, "a foo b", 0, 2, 5 },
    { { "abcd", "bc" }, "xabcd", 1, 2, 4 },
    { { "bc", "abc" }, "xabc", 1, 1, 4 },
    { { "ab", "ab" }, "ab", 0, 0, 2 },
    { { "aab" }, "aaab", 0, 1, 4 },
    { { "\\$ ", "\\x41\\101\\u00e9" }, "AA\xc3\xa9", 1, 0, 4 },
    { { "foo" }, "fo", -1, 0, 0 },
    /* the same rule with regular expressions */
    { { "a.c|b" }, "abc", 0, 1, 2 },
    { { "b+?c", "a?b+c" }, "abbc", 1, 0, 4 },
    { { "[ab]c", "bc", "a?bc" }, "bc", 0, 0, 2 },
    { { "bc$", "b.", "bc" }, "bc", 0, 0, 2 },
    { { "foo.*bar" }, "xfoo foo\nbar", 0, 1, 12 },
    { { ".*bar" }, "foobar", 0, 0, 6 },
    { { "a*?b" }, "aaab", 0, 0, 4 },
    { { "x{2,3}y" }, "xxxxy", 0, 1, 5 },
    { { "x{,2}y" }, "xxxy", 0, 1, 4 },
    { { "a{x}" }, "a{x}", 0, 0, 4 },
    { { "(?P<n>a)(?:b|c)(d)" }, "acd", 0, 0, 3 },
    { { "[]a-c^-]+z" }, "-]az", 0, 0, 4 },
    { { "[^a-c]x" }, "axdx", 0, 2, 4 },
    { { "(?-s:a.b)" }, "a\nba-b", 0, 3, 6 },
    { { "(?x) a b # comment\n c" }, "abc", 0, 0, 3 },
    { { "(?i)KeY" }, "xkEy", 0, 1, 4 },
    { { "(?i)k" }, "\xe2\x84\xaa", 0, 0, 3 },
    { { "(?ai)k" }, "\xe2\x84\xaaK", 0, 3, 4 },
    { { "\\d\\s\\w" }, "1 a", 0, 0, 3 },
    { { "\\D\\S\\W" }, "a!-", 0, 0, 3 },
    { { "\\d" }, "a\xd9\xa0", 0, 1, 3 },
    { { "(?a)\\d" }, "a\xd9\xa0", -1, 0, 0 },
    /* anchors and boundaries */
    { { "^b" }, "ab", -1, 0, 0 },
    { { "\\Aab" }, "ab", 0, 0, 2 },
    { { "(?m)^b" }, "a\nb", 0, 2, 3 },
    { { "(?m)a$" }, "ab a", 0, 0, 1 },
    { { "(?m)a$\nb" }, "ab a\nb", 0, 3, 6 },
    { { "foo$" }, "foobar", 0, 0, 3 },
    { { "foo\\Z" }, "foobar", 0, 0, 3 },
    { { "\\bfoo" }, "xfoo foo", 0, 5, 8 },
    { { "\\Bfoo" }, "foo xfoo", 0, 5, 8 },
    { { "a\\b.\\bc" }, "abc a-c", 0, 4, 7 },
    { { "\\bfoo\\b" }, "xfoo foo", 0, 5, 8 },
    { { "\\bx" }, "\xc3\x80x x", 0, 4, 5 },
    { { "(?a)\\bx" }, "\xc3\x80x x", 0, 2, 3 },
    /* UTF-8, and bytes that are none */
    { { "a.c" }, "a\xe2\x82\xac" "c", 0, 0, 5 },
    { { "^.{3}x" }, "\xc3\xa9\xf0\x9f\x98\x80zx", 0, 0, 8 },
    { { "^.{3}x" }, "\xed\xa0\x80x", 0, 0, 4 }, /* a surrogate is no character */
    { { "^.{4}x" }, "\xf4\x90\x80\x80x", 0, 0, 5 },
    { { "^.{3}x" }, "\xe0\x80\x80x", 0, 0, 4 },
    { { "a.c" }, "a\xe9" "c", 0, 0, 3 },
    { { "a..c" }, "a\xe2\x82" "c", 0, 0, 4 },
    { { "a.c" }, "a\xe2\x82" "c", -1, 0, 0 },
    { { "a[^b]" }, "a\xe2\x82" "c", 0, 0, 2 },
    { { "[\xc3\xa0-\xc3\xaa]" }, "\xe9\xc3\xa9", 0, 1, 3 },
    { { "\\w" }, "\xe9\xc3\x80", 0, 1, 3 },
    { { "\\W" }, "\xe9\xc3\x80", 0, 0, 1 },
    { { "\xc3\xa9" }, "\xe2\xc3\xa9", 0, 1, 3 },
    { { NULL }, "anything", -1, 0, 0 },
};

static void check_hit(const example *e, swx_status status, const swx_hit *hit)
{
    if (e->index < 0) {
        CHECK(status == SWX_MORE);
    } else {
        CHECK(status == SWX_OK);
        CHECK(hit->index == (size_t)e->index && hit->start == (uint64_t)e->start && hit->end == (uint64_t)e->end);
    }
}

static swx_status feed_chunks(swx_match *match, const uint8_t *bytes, size_t size, size_t chunk, size_t *read, swx_hit *hit)
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

static void test_examples_at_every_chunk_size(void)
{
    for (size_t i = 0; i < SWX_COUNT(examples); i++) {
        const example *e = &examples[i];
        swx_match *match = compiled(e->patterns);
        for (size_t chunk = 1; chunk <= strlen(e->text); chunk++) {
            swx_hit hit;
            size_t read;
            swx_match_reset(match);
            swx_status status = feed_chunks(match, (const uint8_t *)e->text, strlen(e->text), chunk, &read, &hit);
            check_hit(e, status, &hit);
        }
        swx_match_free(match);
    }
}

static void test_examples_on_the_naive_matcher(void)
{
    for (size_t i = 0; i < SWX_COUNT(examples); i++) {
        const example *e = &examples[i];
        swx_pattern patterns[MOST];
        uint32_t roots[MOST];
        swx_regex regex = { .tables = &tables };
        swx_hit hit;
        size_t count = list_of(patterns, e->patterns);
        for (size_t k = 0; k < count; k++) {
            CHECK(swx_regex_parse(&regex, patterns[k], &roots[k], NULL) == SWX_OK);
        }
        bool found = naive_search(&regex, roots, count, (const uint8_t *)e->text, strlen(e->text), 0, &hit);
        check_hit(e, found ? SWX_OK : SWX_MORE, &hit);
        swx_regex_free(&regex);
    }
}

/* ---- refusals ---- */

typedef struct {
    const char *pattern;
    swx_status status;
    size_t position;
} refusal;

static const refusal refusals[] = {
    { "a)", SWX_EINVAL, 1 },          { "(a", SWX_EINVAL, 0 },           { "a**", SWX_EINVAL, 2 },
    { "*a", SWX_EINVAL, 0 },          { "^*", SWX_EINVAL, 1 },           { "[a", SWX_EINVAL, 0 },
    { "x[b-a]", SWX_EINVAL, 2 },      { "\xc3\xa9[\\d-z]", SWX_EINVAL, 3 }, { "\\q", SWX_EINVAL, 0 },
    { "ab\\", SWX_EINVAL, 2 },        { "a{3,2}", SWX_EINVAL, 2 },       { "\\x4", SWX_EINVAL, 0 },
    { "a(?i)", SWX_EINVAL, 1 },       { "(?P<n>a)(?P<n>b)", SWX_EINVAL, 12 }, { "(?P<1>a)", SWX_EINVAL, 4 },
    { "(?L)a", SWX_EINVAL, 2 },       { "(?au)a", SWX_EINVAL, 4 },       { "(?i-i:a)", SWX_EINVAL, 5 },
    { "(?#a", SWX_EINVAL, 0 },        { "\\400", SWX_EINVAL, 0 },        { "[\\8]", SWX_EINVAL, 1 },
    { "(?Px)", SWX_EINVAL, 0 },       { "(?y)", SWX_EINVAL, 2 },         { "\xff", SWX_EINVAL, 0 },
    { "a\xed\xa0\x80", SWX_EINVAL, 1 },
    { "(a)\\1", SWX_EUNSUPPORTED, 3 },   { "(?=a)", SWX_EUNSUPPORTED, 0 },   { "(?<!a)b", SWX_EUNSUPPORTED, 0 },
    { "(?>a)", SWX_EUNSUPPORTED, 0 },    { "a++", SWX_EUNSUPPORTED, 1 },     { "(a)(?(1)b)", SWX_EUNSUPPORTED, 3 },
    { "(?P<n>a)(?P=n)", SWX_EUNSUPPORTED, 8 }, { "\\N{DASH}", SWX_EUNSUPPORTED, 0 }, { "(?i)\xc3\xa9", SWX_EUNSUPPORTED, 4 },
    { "\\ud800", SWX_EUNSUPPORTED, 0 },  { "a\\B", SWX_EUNSUPPORTED, 0 },    { ".\\b", SWX_EUNSUPPORTED, 0 },
    { "\\b", SWX_EUNSUPPORTED, 0 },      { "a$\n", SWX_EUNSUPPORTED, 0 },    { "a$.b", SWX_EUNSUPPORTED, 0 },
    { "[\\ud900-\\uda00]", SWX_EUNSUPPORTED, 0 },
    { "(a{1000}){1000}", SWX_ELIMIT, 0 },
};

static void test_refusals_name_pattern_and_place(void)
{
    for (size_t i = 0; i < SWX_COUNT(refusals); i++) {
        const char *texts[] = { "fine", refusals[i].pattern, NULL };
        swx_pattern patterns[2];
        swx_match *match = (swx_match *)patterns;
        swx_error err = { 0 };
        size_t bad = 9, count = list_of(patterns, texts);
        swx_status status = swx_match_new(&match, patterns, count, &tables, &bad, &err);
        CHECK(status == refusals[i].status);
        CHECK(match == NULL && bad == 1 && err.status == status && err.text && err.position == refusals[i].position);
    }
}

static void test_tables_are_asked_for_only_when_needed(void)
{
    static const char *const texts[] = { "\\s", "(?a)\\d\\w", "(?a:\\bx)", "[\\s\\S]", "\\d", "[\\w]", "\\bx" };
    for (size_t i = 0; i < SWX_COUNT(texts); i++) {
        swx_pattern pattern = { (const uint8_t *)texts[i], strlen(texts[i]) };
        swx_match *match;
        swx_status status = swx_match_new(&match, &pattern, 1, NULL, NULL, NULL);
        CHECK(status == (i < 4 ? SWX_OK : SWX_EUNSUPPORTED));
        swx_match_free(match);
    }
}

static void test_nesting_and_size_are_limited(void)
{
    size_t depth = 10 * SWX_REGEX_MAX_DEPTH, length = SWX_MATCH_MAX_BYTES + 1;
    uint8_t *text = malloc(length);
    swx_pattern pattern = { text, 2 * depth };
    swx_match *match;
    memset(text, '(', depth);
    memset(text + depth, ')', depth);
    CHECK(swx_match_new(&match, &pattern, 1, NULL, NULL, NULL) == SWX_ELIMIT);
    memset(text, 'a', length);
    pattern.size = length;
    CHECK(swx_match_new(&match, &pattern, 1, NULL, NULL, NULL) == SWX_ELIMIT);
    pattern.size = 12000; /* a long literal is fine */
    CHECK(swx_match_new(&match, &pattern, 1, NULL, NULL, NULL) == SWX_OK);
    swx_match_free(match);
    free(text);
}

static void test_empty_matches_are_told(void)
{
    static const char *const texts[] = { "a", "a*", "$", "(?m)^", "x|", "\\Ba", "(a|b?)(?:)", NULL };
    static const bool empty[] = { false, true, true, true, true, false, true };
    swx_match *match = compiled(texts);
    swx_hit hit;
    size_t consumed;
    for (size_t i = 0; texts[i]; i++) {
        CHECK(swx_match_matches_empty(match, i) == empty[i]);
    }
    CHECK(swx_match_count(match) == 7);
    CHECK(swx_match_feed(match, (const uint8_t *)"a", 1, &consumed, &hit) == SWX_OK);
    CHECK(hit.index == 1 && hit.start == 0 && hit.end == 0 && consumed == 0);
    swx_match_free(match);
    static const char *const literals[] = { "a", "", NULL };
    match = compiled(literals);
    CHECK(!swx_match_matches_empty(match, 0) && swx_match_matches_empty(match, 1));
    CHECK(swx_match_feed(match, (const uint8_t *)"a", 1, &consumed, &hit) == SWX_OK && hit.index == 1);
    swx_match_free(match);
}

/* ---- going on after a hit ---- */

static void test_search_goes_on_after_a_hit(void)
{
    static const char *const sets[][3] = { { "ab", "b", NULL }, { "a.", "b", NULL } };
    for (size_t i = 0; i < 2; i++) {
        swx_match *match = compiled(sets[i]);
        swx_hit hit;
        size_t consumed;
        const uint8_t *text = (const uint8_t *)"abbab";
        CHECK(swx_match_feed(match, text, 5, &consumed, &hit) == SWX_OK && hit.end == 2 && consumed == 2 && hit.index == 0);
        CHECK(swx_match_feed(match, text + 2, 3, &consumed, &hit) == SWX_OK && hit.start == 2 && hit.end == 3 && hit.index == 1);
        CHECK(swx_match_feed(match, text + 3, 2, &consumed, &hit) == SWX_OK && hit.start == 3 && hit.end == 5);
        CHECK(swx_match_feed(match, text, 1, &consumed, &hit) == SWX_MORE);
        swx_match_reset(match);
        CHECK(swx_match_feed(match, text + 1, 1, &consumed, &hit) == SWX_OK && hit.start == 0 && hit.end == 1);
        swx_match_free(match);
    }
}

static void test_beginning_is_the_last_hit(void)
{
    static const char *const texts[] = { "^a", NULL };
    swx_match *match = compiled(texts);
    swx_hit hit;
    size_t consumed;
    CHECK(swx_match_feed(match, (const uint8_t *)"aaba", 4, &consumed, &hit) == SWX_OK && hit.end == 1);
    CHECK(swx_match_feed(match, (const uint8_t *)"aba", 3, &consumed, &hit) == SWX_OK && hit.end == 2);
    CHECK(swx_match_feed(match, (const uint8_t *)"ba", 2, &consumed, &hit) == SWX_MORE);
    swx_match_free(match);
}

/* A truncated sequence is known to be one a byte late; what follows the hit inside of it is remembered. */
static void test_hit_inside_a_broken_sequence(void)
{
    static const char *const texts[] = { "x[^z]", "[^z]", NULL };
    swx_match *match = compiled(texts);
    swx_hit hit;
    size_t consumed;
    const uint8_t *text = (const uint8_t *)"x\xf0\x9f\x98|";
    CHECK(swx_match_feed(match, text, 1, &consumed, &hit) == SWX_OK && hit.index == 1 && hit.end == 1);
    CHECK(swx_match_feed(match, text + 1, 3, &consumed, &hit) == SWX_MORE && consumed == 3);
    for (uint64_t i = 0; i < 3; i++) {
        CHECK(swx_match_feed(match, text + 4, 1, &consumed, &hit) == SWX_OK);
        CHECK(consumed == 0 && hit.start == 1 + i && hit.end == 2 + i);
    }
    CHECK(swx_match_feed(match, text + 4, 1, &consumed, &hit) == SWX_OK && consumed == 1 && hit.end == 5);
    swx_match_free(match);
}

/* ---- long texts, small caches ---- */

static unsigned roll(unsigned *seed) { return (*seed = *seed * 1103515245u + 12345u) >> 16; }

/* The DFA with a cache that overflows all the time must answer as the one with a large cache. */
static void test_tiny_cache_changes_nothing(void)
{
    static const char *const texts[] = { "(?:a|b)*a(?:a|b){9}z", "[^c]{5}cc", "a.*cab.{3}y", NULL };
    swx_pattern patterns[MOST];
    uint32_t roots[MOST];
    swx_regex regex = { .tables = &tables };
    swx_nfa nfa;
    swx_alphabet alphabet;
    swx_skip skip;
    size_t bad, count = list_of(patterns, texts);
    for (size_t i = 0; i < count; i++) {
        CHECK(swx_regex_parse(&regex, patterns[i], &roots[i], NULL) == SWX_OK);
    }
    CHECK(swx_nfa_build(&nfa, &regex, roots, count, &bad, NULL) == SWX_OK);
    CHECK(swx_alphabet_build(&alphabet, &regex, &nfa, NULL) == SWX_OK);
    swx_skip_init(&skip);
    CHECK(swx_prefix_add(&skip, &nfa, &regex) == SWX_OK);
    swx_skip_finish(&skip);
    swx_dfa *small, *large;
    CHECK(swx_dfa_new(&small, &nfa, &alphabet, &skip, 1) == SWX_OK);
    CHECK(swx_dfa_new(&large, &nfa, &alphabet, &skip, SWX_DFA_CACHE) == SWX_OK);
    unsigned seed = 7, hits = 0;
    for (int round = 0; round < 3000; round++) {
        uint8_t text[40];
        for (size_t i = 0; i < sizeof(text); i++) {
            text[i] = "aaabbbccxyz\xc3"[roll(&seed) % 12];
        }
        for (size_t at = 0; at < sizeof(text);) {
            swx_hit a, b;
            size_t read_a, read_b;
            swx_status status = swx_dfa_feed(small, text + at, sizeof(text) - at, &read_a, &a);
            CHECK(swx_dfa_feed(large, text + at, sizeof(text) - at, &read_b, &b) == status && read_a == read_b);
            CHECK(status != SWX_OK || (a.index == b.index && a.start == b.start && a.end == b.end));
            hits += status == SWX_OK;
            at += read_a;
        }
    }
    CHECK(hits > 100);
    swx_dfa_free(small);
    swx_dfa_free(large);
    swx_alphabet_free(&alphabet);
    swx_nfa_free(&nfa);
    swx_regex_free(&regex);
}

/* Skipping must not change an answer, wherever the hit lies in a block and wherever the chunk ends. */
static void test_hits_at_every_place_of_a_block(void)
{
    static const char *const sets[][4] = { { "needle", "nettle", NULL },
                                           { "ne+dle", "\\bnettle", NULL },
                                           { "(?m)^needle", "\xc3\xa9\\d", NULL } };
    uint8_t text[120];
    for (size_t i = 0; i < 3; i++) {
        swx_match *match = compiled(sets[i]);
        for (size_t place = 0; place + 6 < sizeof(text); place++) {
            for (size_t chunk = 1; chunk <= sizeof(text); chunk += chunk < 20 ? 1 : 25) {
                swx_hit hit;
                size_t read;
                for (size_t k = 0; k < sizeof(text); k++) {
                    text[k] = (uint8_t)"ne xc\xc3\n"[(k * k + place) % 7];
                }
                if (place) {
                    text[place - 1] = '\n';
                }
                memcpy(text + place, "needle", 6);
                swx_match_reset(match);
                CHECK(feed_chunks(match, text, sizeof(text), chunk, &read, &hit) == SWX_OK);
                CHECK(hit.index == 0 && hit.start == place && hit.end == place + 6 && read == place + 6);
            }
        }
        swx_match_free(match);
    }
}

/* ---- failing allocations ---- */

#ifdef SWX_ALLOC_TEST
static const char *const demanding[][4] = { { "abc", "bcd", NULL },
                                            { "(?P<a>a|[b-d])*\\bx", "\\w+(?i:k)", "(?m)^\\d$", NULL } };

static void fail_at(unsigned long n, int forever, const char *const *texts, bool *done)
{
    swx_pattern patterns[MOST];
    swx_match *match;
    swx_error err = { 0 };
    size_t consumed, count = list_of(patterns, texts), read;
    swx_hit hit = { 0 };
    const uint8_t *text = (const uint8_t *)"--- bcx abb cde -- \xc3\x80 \xe2\x82 b abc bk";
    long before = swx_alloc_live();
    swx_alloc_fail_at(n, forever);
    swx_status status = swx_match_new(&match, patterns, count, &tables, NULL, &err);
    if (status == SWX_OK) {
        status = feed_chunks(match, text, strlen((const char *)text), 3, &read, &hit);
        *done = swx_alloc_count() < n;
        if (status == SWX_ENOMEM) {
            CHECK(swx_match_feed(match, text, 1, &consumed, &hit) == SWX_ENOMEM); /* sticky */
            swx_alloc_fail_at(0, 0);
            swx_match_reset(match);
            CHECK(swx_match_feed(match, text, strlen((const char *)text), &consumed, &hit) == SWX_OK);
        }
        CHECK(hit.end > 0);
    } else {
        CHECK(status == SWX_ENOMEM && match == NULL && err.status == SWX_ENOMEM && err.text);
    }
    swx_alloc_fail_at(0, 0);
    swx_match_free(match);
    CHECK(swx_alloc_live() == before);
}

static void test_every_allocation_may_fail(void)
{
    for (size_t i = 0; i < SWX_COUNT(demanding); i++) {
        for (int forever = 0; forever < 2; forever++) {
            bool done = false;
            for (unsigned long n = 1; !done; n++) {
                fail_at(n, forever, demanding[i], &done);
                CHECK(n < 1000);
            }
        }
    }
}
#else
static void test_every_allocation_may_fail(void) {}
#endif

/* Each letter that may matter later doubles the states of the DFA. */
static void test_work_is_limited(void)
{
    static uint8_t text[1 << 20];
    const char *const texts[] = { "a[ab]{5000}c", "d", NULL };
    swx_pattern patterns[MOST];
    swx_match *match;
    swx_error err;
    swx_hit hit;
    size_t consumed, count = list_of(patterns, texts);
    uint32_t random = 1;
    for (size_t i = 0; i < sizeof(text); i++) {
        random = random * 1664525 + 1013904223;
        text[i] = random >> 31 ? 'a' : 'b';
    }
    CHECK(swx_match_new(&match, patterns, count, &tables, NULL, &err) == SWX_OK);
    CHECK(swx_match_feed(match, text, sizeof(text), &consumed, &hit) == SWX_ELIMIT);
    CHECK(swx_match_feed(match, (const uint8_t *)"d", 1, &consumed, &hit) == SWX_ELIMIT); /* sticky */
    swx_match_reset(match);
    CHECK(swx_match_feed(match, (const uint8_t *)"d", 1, &consumed, &hit) == SWX_OK && hit.index == 1);
    swx_match_free(match);
}

TEST_MAIN(test_examples_at_every_chunk_size, test_examples_on_the_naive_matcher, test_refusals_name_pattern_and_place,
          test_tables_are_asked_for_only_when_needed, test_nesting_and_size_are_limited, test_empty_matches_are_told,
          test_search_goes_on_after_a_hit, test_beginning_is_the_last_hit, test_hit_inside_a_broken_sequence,
          test_tiny_cache_changes_nothing, test_hits_at_every_place_of_a_block, test_work_is_limited,
          test_every_allocation_may_fail)
