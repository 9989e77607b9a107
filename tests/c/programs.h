/* programs.h: builds programs for the matcher, of ASCII patterns.
 *
 * Letters are the 128 ASCII characters, then the rest below the surrogates, the surrogates, and the rest above. */
#ifndef SWX_TEST_PROGRAMS_H
#define SWX_TEST_PROGRAMS_H

#include "harness.h"
#include "swx_match.h"

enum { LETTERS = 131, SURROGATES = 129, WIDTH = (LETTERS + 31) / 32, MOST = 256 };

typedef struct {
    uint32_t states[MOST][3], starts[MOST], sets[MOST][WIDTH];
    swx_match_counts counts;
    uint32_t first; /* of the pattern at hand */
} builder;

static inline uint32_t state(builder *b, swx_nfa_kind kind, uint32_t value, uint32_t out)
{
    CHECK(b->counts.states < MOST);
    uint32_t *s = b->states[b->counts.states];
    s[0] = kind;
    s[1] = value;
    s[2] = out;
    return b->counts.states++;
}

static inline uint32_t set(builder *b, const char *members)
{
    uint32_t *bits = b->sets[b->counts.sets];
    CHECK(b->counts.sets < MOST);
    for (; *members; members++) {
        bits[(uint8_t)*members / 32] |= UINT32_C(1) << (uint8_t)*members % 32;
    }
    return b->counts.sets++;
}

/* All letters but these. */
static inline uint32_t set_without(builder *b, const char *members)
{
    uint32_t number = set(b, members);
    for (unsigned letter = 0; letter < LETTERS; letter++) {
        b->sets[number][letter / 32] ^= UINT32_C(1) << letter % 32;
    }
    return number;
}

static inline builder new_builder(void)
{
    builder b;
    memset(&b, 0, sizeof(b));
    set(&b, "\n");
    set(&b, "");
    b.sets[1][SURROGATES / 32] |= UINT32_C(1) << SURROGATES % 32;
    b.counts.bounds = b.counts.letters = LETTERS;
    b.counts.word = set(&b, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz") + 1;
    b.counts.ascii_word = b.counts.word;
    return b;
}

/* The end of the next pattern. */
static inline uint32_t end_of(builder *b) { return state(b, SWX_MATCH, b->counts.patterns, 0); }

static inline uint32_t read_of(builder *b, const char *members, uint32_t out)
{
    return state(b, SWX_READ, set(b, members), out);
}

/* A text in front of `out`. */
static inline uint32_t text_of(builder *b, const char *text, uint32_t out)
{
    for (size_t i = strlen(text); i-- > 0;) {
        out = read_of(b, (char[]){ text[i], 0 }, out);
    }
    return out;
}

static inline void begins(builder *b, uint32_t start) { b->starts[b->counts.patterns++] = start; }

static inline void add_text(builder *b, const char *text) { begins(b, text_of(b, text, end_of(b))); }

/* Of the bytes that a match may begin with. */
enum { FIRST_WORDS = 256 / 32 };

/* The program; free it.  Every byte may be the first of a match, but for patterns that begin with a read of ASCII. */
static inline uint32_t *program_of(const builder *b, size_t *count)
{
    const swx_match_counts *c = &b->counts;
    const size_t header = sizeof(*c) / sizeof(uint32_t);
    *count = header + 3 * c->states + c->patterns + 2 * c->bounds + c->sets * WIDTH + FIRST_WORDS;
    uint32_t *program = calloc(*count, sizeof(*program)), *at = program + header;
    CHECK(program);
    memcpy(program, c, sizeof(*c));
    memcpy(at, b->states, 3 * c->states * sizeof(*at));
    memcpy(at += 3 * c->states, b->starts, c->patterns * sizeof(*at));
    at += c->patterns;
    for (uint32_t i = 0; i < LETTERS; i++) {
        at[i] = i < SURROGATES ? i : i == SURROGATES ? 0xD800 : 0xE000;
        at[i + LETTERS] = i;
    }
    memcpy(at += 2 * LETTERS, b->sets, c->sets * sizeof(b->sets[0]));
    at += c->sets * WIDTH;
    for (uint32_t i = 0; i < c->patterns; i++) {
        const uint32_t *s = b->states[b->starts[i]];
        bool reads = s[0] == SWX_READ && !(b->sets[s[1]][4]);
        for (unsigned word = 0; word < FIRST_WORDS; word++) {
            at[word] |= !reads ? ~0u : word < 4 ? b->sets[s[1]][word] : 0;
        }
    }
    return program;
}

static inline swx_status match_of(const builder *b, swx_match **match)
{
    size_t count;
    uint32_t *program = program_of(b, &count);
    swx_status status = swx_match_new(match, program, count);
    free(program);
    return status;
}

/* Of one text; free it. */
static inline swx_match *pattern(const char *text)
{
    builder b = new_builder();
    swx_match *match;
    add_text(&b, text);
    CHECK(match_of(&b, &match) == SWX_OK);
    return match;
}

#endif
