/* The program, and the stream that is searched.  See the header for the picture. */
#include "swx_match.h"

#include <stdlib.h>
#include <string.h>

#include "swx_dfa.h"

struct swx_match {
    uint32_t *program; /* which the parts lie in, those of the DFA too */
    const uint32_t *bounds, *letters;
    uint16_t ascii[128]; /* letters */
    uint32_t invalid;    /* letter */
    bool may_begin[256]; /* per byte: a match may begin with it */
    swx_dfa dfa;

    /* the stream */
    uint32_t row;
    uint64_t *registers;
    uint64_t offset;
    uint32_t code_point;
    uint8_t pending, needed; /* bytes of a UTF-8 sequence read, and still to come */
    uint8_t low, high;       /* bounds of the next byte of the sequence */
    uint8_t owed;            /* invalid bytes just before offset that are still to be taken */
    swx_status failed;
};

/* ---- the stream ---- */

/* At the beginning, and after a hit. */
static void begin(swx_match *match)
{
    match->row = match->dfa.watched & SWX_AT_START ? match->dfa.idle_rows : 0;
    match->pending = 0;
}

/* Follows a move that is no hit; the letter began at offset `start`. */
static inline void follow(swx_match *match, const swx_dfa_move *m, uint64_t start)
{
    const uint16_t *map = (const uint16_t *)(const void *)match->dfa.maps.data + m->map;
    for (size_t group = 0; group < m->groups; group++) { /* groups only move down, so the order is safe */
        match->registers[group] = map[group] == SWX_DFA_FRESH ? start : match->registers[map[group]];
    }
    match->row = m->row;
}

/* Takes one letter, which began at offset `start` and ends before `end`. */
static swx_status take(swx_match *match, uint32_t letter, uint64_t start, uint64_t end, swx_hit *hit)
{
    uint32_t entry = swx_dfa_rows(&match->dfa)[match->row + letter];
    if (entry == SWX_DFA_UNKNOWN) {
        bool cheap = match->dfa.work <= SWX_MATCH_WORK + start * SWX_MATCH_WORK_PER_BYTE;
        if (!cheap || !swx_dfa_make_entry(&match->dfa, match->row, letter, &entry)) {
            return match->failed = cheap ? SWX_ENOMEM : SWX_ELIMIT;
        }
    }
    if (!(entry & SWX_DFA_SPECIAL)) {
        match->row = entry;
        return SWX_MORE;
    }
    const swx_dfa_move *m = swx_dfa_move_of(&match->dfa, entry);
    if (m->pattern) {
        *hit = (swx_hit){ m->pattern - 1, m->from == SWX_DFA_FRESH ? start : match->registers[m->from], end };
        begin(match);
        return SWX_OK;
    }
    follow(match, m, start);
    return SWX_MORE;
}

/* The last place at or before `at`, and not before `from`, where a character may begin. */
static size_t back_to_character(const uint8_t *bytes, size_t from, size_t at)
{
    for (int i = 0; i < 3 && at > from && (bytes[at] & 0xC0) == 0x80; i++) {
        at--;
    }
    return at;
}

/* The next byte that a match may begin with.  Four at a time are twice as fast as one. */
static size_t find_begin(const bool may_begin[256], const uint8_t *bytes, size_t at, size_t size)
{
    while (size - at >= 4 &&
           !(may_begin[bytes[at]] | may_begin[bytes[at + 1]] | may_begin[bytes[at + 2]] | may_begin[bytes[at + 3]])) {
        at += 4;
    }
    while (at < size && !may_begin[bytes[at]]) {
        at++;
    }
    return at;
}

/* Nothing is alive: goes to where something may begin.  Where assertions ask for the character before it, that one is
 * read again; it cannot begin a match, so the wrong context that it is read in does no harm. */
static size_t skip_idle(swx_match *match, const uint8_t *bytes, size_t at, size_t size)
{
    size_t found = find_begin(match->may_begin, bytes, at, size);
    if (found > at) {
        size_t from = match->dfa.watched & ~(unsigned)SWX_AT_START ? back_to_character(bytes, at, found - 1) : found;
        if (from > at) {
            match->row = 0;
        }
        at = from;
    }
    return at;
}

/* Follows entries that are made and are no hits, through ASCII and until nothing is alive; returns where it stopped. */
static size_t run_alive(swx_match *match, const uint8_t *bytes, size_t at, size_t size, uint32_t idle)
{
    const uint32_t *rows = swx_dfa_rows(&match->dfa);
    const uint16_t *letters = match->ascii;
    uint32_t row = match->row;
    while (at < size && bytes[at] < 0x80) {
        uint32_t entry = rows[row + letters[bytes[at]]];
        if (entry >= SWX_DFA_SPECIAL) {
            if (entry == SWX_DFA_UNKNOWN) {
                break;
            }
            const swx_dfa_move *m = swx_dfa_move_of(&match->dfa, entry);
            if (m->pattern) {
                break;
            }
            follow(match, m, match->offset + at);
            entry = m->row;
        }
        row = entry;
        at++;
        if (row < idle) {
            break;
        }
    }
    match->row = row;
    return at;
}

/* Goes on as far as nothing needs to be made, decoded or reported: to the byte that does, or to size. */
static size_t run(swx_match *match, const uint8_t *bytes, size_t at, size_t size)
{
    uint32_t idle = match->dfa.idle_rows;
    for (size_t before = size; at < size && at != before;) {
        if (match->row < idle) {
            at = skip_idle(match, bytes, at, size);
        }
        before = at;
        at = run_alive(match, bytes, at, size, idle);
        if (match->row >= idle) {
            break;
        }
    }
    return at;
}

typedef enum { DECODE_MORE, DECODE_CHARACTER, DECODE_INVALID, DECODE_BROKEN } decoded;

/* One byte of text that is not plain ASCII.  Well-formed sequences: The Unicode Standard, table 3-7. */
static decoded decode(swx_match *match, uint8_t byte)
{
    if (match->pending) {
        if (byte < match->low || byte > match->high) {
            return DECODE_BROKEN;
        }
        match->code_point = match->code_point << 6 | (byte & 0x3F);
        match->low = 0x80;
        match->high = 0xBF;
        match->pending++;
        return --match->needed ? DECODE_MORE : DECODE_CHARACTER;
    }
    if (byte < 0xC2 || byte > 0xF4) {
        return DECODE_INVALID;
    }
    match->needed = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    match->code_point = byte & (0x3Fu >> match->needed);
    match->low = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
    match->high = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
    match->pending = 1;
    return DECODE_MORE;
}

static uint32_t letter_of(const swx_match *match, uint32_t code_point)
{
    size_t low = 0, high = match->dfa.counts.bounds;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (match->bounds[middle] <= code_point) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return match->letters[low];
}

/* Takes one byte that `run` stopped at.  *at moves on unless the byte broke a sequence. */
static swx_status take_byte(swx_match *match, const uint8_t *bytes, size_t *at, swx_hit *hit)
{
    uint8_t byte = bytes[*at];
    uint64_t place = match->offset + *at, start;
    if (byte < 0x80 && !match->pending) {
        ++*at;
        return take(match, match->ascii[byte], place, place + 1, hit);
    }
    switch (decode(match, byte)) {
    case DECODE_BROKEN:
        match->owed = match->pending;
        match->pending = 0;
        return SWX_MORE;
    case DECODE_INVALID: ++*at; return take(match, match->invalid, place, place + 1, hit);
    case DECODE_CHARACTER:
        ++*at;
        start = place + 1 - match->pending;
        match->pending = 0;
        return take(match, letter_of(match, match->code_point), start, place + 1, hit);
    case DECODE_MORE:
    default: ++*at; return SWX_MORE;
    }
}

swx_status swx_match_feed(swx_match *match, const uint8_t *bytes, size_t size, size_t *consumed, swx_hit *hit)
{
    swx_status status = match->failed;
    size_t at = 0;
    uint64_t earned = match->offset * SWX_MATCH_WORK_PER_BYTE; /* is not saved for later */
    match->dfa.work = match->dfa.work < earned ? earned : match->dfa.work;
    while (status == SWX_MORE && (match->owed || at < size)) {
        if (match->owed) {
            uint64_t start = match->offset + at - match->owed--;
            status = take(match, match->invalid, start, start + 1, hit);
            continue;
        }
        if (!match->pending) {
            at = run(match, bytes, at, size);
        }
        if (at < size) {
            status = take_byte(match, bytes, &at, hit);
        }
    }
    match->offset += at;
    *consumed = at;
    return status;
}

void swx_match_reset(swx_match *match)
{
    /* A failed allocation may have left the cache half made. */
    bool good = match->failed == SWX_MORE || swx_dfa_start_cache(&match->dfa);
    match->failed = good ? SWX_MORE : SWX_ENOMEM;
    match->offset = 0;
    match->owed = 0;
    match->dfa.work = 0;
    begin(match);
}

/* ---- construction ---- */

static bool are_states(const swx_match *match)
{
    const swx_match_counts *counts = &match->dfa.counts;
    const uint32_t limits[] = { counts->sets, counts->states, SWX_AT_ASCII_NO_BOUNDARY + 1, counts->patterns };
    for (size_t i = 0; i < counts->states; i++) {
        const swx_nfa_state *s = &match->dfa.nfa[i];
        if (s->kind >= SWX_COUNT(limits) || s->value >= limits[s->kind] || s->out >= counts->states) {
            return false;
        }
    }
    for (size_t i = 0; i < counts->patterns; i++) {
        if (match->dfa.starts[i] >= counts->states) {
            return false;
        }
    }
    return true;
}

static bool are_letters(const swx_match *match)
{
    const swx_match_counts *counts = &match->dfa.counts;
    for (size_t i = 0; i < counts->bounds; i++) {
        if (match->letters[i] >= counts->letters) {
            return false;
        }
    }
    return counts->bounds && counts->states <= SWX_MATCH_MAX_STATES && counts->letters <= SWX_MATCH_MAX_LETTERS &&
           counts->word <= counts->sets && counts->ascii_word <= counts->sets;
}

/* Sets the parts of the program, if it is one. */
static bool take_apart(swx_match *match, size_t count)
{
    swx_match_counts *counts = &match->dfa.counts;
    const uint32_t *at = match->program;
    if (count < sizeof(*counts) / sizeof(*at)) {
        return false;
    }
    memcpy(counts, at, sizeof(*counts));
    uint64_t needed = sizeof(*counts) / sizeof(*at) + 3 * (uint64_t)counts->states + counts->patterns +
                      2 * (uint64_t)counts->bounds + counts->sets * (uint64_t)swx_dfa_width(&match->dfa) + 8;
    if (needed != count) {
        return false;
    }
    at += sizeof(*counts) / sizeof(*at);
    match->dfa.nfa = (const swx_nfa_state *)(const void *)at;
    match->dfa.starts = at + 3 * counts->states;
    match->bounds = match->dfa.starts + counts->patterns;
    match->letters = match->bounds + counts->bounds;
    match->dfa.sets = match->letters + counts->bounds;
    if (!are_states(match) || !are_letters(match)) {
        return false;
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        match->may_begin[byte] = match->program[count - 8 + byte / 32] >> byte % 32 & 1;
    }
    return true;
}

static swx_status build(swx_match *match, size_t count)
{
    if (!take_apart(match, count)) {
        return SWX_EINVAL;
    }
    for (uint32_t c = 0; c < 128; c++) {
        match->ascii[c] = (uint16_t)letter_of(match, c);
    }
    match->dfa.newline = match->ascii['\n'];
    match->invalid = letter_of(match, 0xDC80);
    match->failed = SWX_MORE;
    match->registers = calloc(match->dfa.counts.states + 1, sizeof(*match->registers));
    if (!match->registers || !swx_dfa_init(&match->dfa)) {
        return SWX_ENOMEM;
    }
    begin(match);
    return SWX_OK;
}

swx_status swx_match_new(swx_match **out, const uint32_t *program, size_t count)
{
    swx_match *match = calloc(1, sizeof(*match));
    *out = NULL;
    if (!match || !(match->program = malloc(count * sizeof(*program)))) {
        free(match);
        return SWX_ENOMEM;
    }
    memcpy(match->program, program, count * sizeof(*program));
    swx_status status = build(match, count);
    if (status == SWX_OK) {
        *out = match;
    } else {
        swx_match_free(match);
    }
    return status;
}

void swx_match_limit_cache(swx_match *match, size_t bytes) { match->dfa.budget = bytes; }

void swx_match_free(swx_match *match)
{
    if (match) {
        swx_dfa_free(&match->dfa);
        free(match->registers);
        free(match->program);
        free(match);
    }
}
