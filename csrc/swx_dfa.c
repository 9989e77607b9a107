/* Subset construction on demand, with groups. */
#include "swx_dfa.h"

#include <stdlib.h>
#include <string.h>

#define FIRST 0x80000000u /* in a key: this NFA state opens a group */

typedef struct {
    uint32_t first, count; /* keys[first .. first+count) */
    uint32_t hash;
    uint32_t next; /* in its bucket: number + 1, or 0 */
    uint8_t context;
} state;

/* ---- the cache's parts ---- */

static bool add(swx_buf *part, const void *items, size_t size) { return swx_buf_append(part, items, size) == SWX_OK; }

static state *state_at(const swx_dfa *dfa, size_t number) { return (state *)(void *)dfa->states.data + number; }
static uint32_t state_count(const swx_dfa *dfa) { return (uint32_t)(dfa->states.size / sizeof(state)); }
static const state *state_of_row(const swx_dfa *dfa, uint32_t row) { return state_at(dfa, row / dfa->counts.letters); }
static const uint32_t *keys_of(const swx_dfa *dfa, const state *s)
{
    const uint32_t *keys = (const uint32_t *)(const void *)dfa->keys.data; /* NULL as long as no state has any */
    return s->count ? keys + s->first : keys;
}

/* ---- contexts ---- */

static bool has(const swx_dfa *dfa, uint32_t set, uint32_t letter)
{
    return dfa->sets[set * swx_dfa_width(dfa) + letter / 32] >> letter % 32 & 1;
}

static bool is_in_word(const swx_dfa *dfa, uint32_t set_plus_1, uint32_t letter)
{
    return set_plus_1 && has(dfa, set_plus_1 - 1, letter);
}

static unsigned context_after(const swx_dfa *dfa, uint32_t letter)
{
    unsigned context = letter == dfa->newline ? SWX_AFTER_NEWLINE : 0;
    context |= is_in_word(dfa, dfa->counts.word, letter) ? SWX_AFTER_WORD : 0;
    context |= is_in_word(dfa, dfa->counts.ascii_word, letter) ? SWX_AFTER_ASCII_WORD : 0;
    return context & dfa->watched;
}

/* The text after an assertion. */
typedef enum { FOLLOWS_UNKNOWN, FOLLOWS_LETTER, FOLLOWS_END } following;

/* Whether an assertion holds between `context` and what follows.  *later is set when that cannot be known yet. */
static bool holds(const swx_dfa *dfa, uint32_t assertion, unsigned context, following what, uint32_t letter,
                  bool *later)
{
    bool ascii = assertion >= SWX_AT_ASCII_BOUNDARY, before, after;
    *later = what == FOLLOWS_UNKNOWN && assertion > SWX_AT_LINE_BEGIN;
    switch (assertion) {
    case SWX_AT_BEGIN: return context & SWX_AT_START;
    case SWX_AT_LINE_BEGIN: return context & (SWX_AT_START | SWX_AFTER_NEWLINE);
    case SWX_AT_END:
    case SWX_AT_LAST_LINE: return what == FOLLOWS_END;
    case SWX_AT_LINE_END: return what == FOLLOWS_END || letter == dfa->newline;
    default:
        before = context & (ascii ? SWX_AFTER_ASCII_WORD : SWX_AFTER_WORD);
        after = what == FOLLOWS_LETTER && is_in_word(dfa, ascii ? dfa->counts.ascii_word : dfa->counts.word, letter);
        return (before != after) == (assertion == SWX_AT_BOUNDARY || assertion == SWX_AT_ASCII_BOUNDARY);
    }
}

/* ---- closures ---- */

/* Appends to `out` what is reachable from `start` without reading, but what `seen` carries the mark of already.
 * Kept are the states that read, matches, and the assertions that need to know what follows. */
static void close_over(swx_dfa *dfa, uint32_t start, unsigned context, following what, uint32_t letter, uint32_t *seen,
                       swx_dfa_list *out)
{
    size_t depth = 0;
    dfa->stack[depth++] = start;
    while (depth) {
        uint32_t index = dfa->stack[--depth];
        const swx_nfa_state *s = &dfa->nfa[index];
        bool later = false;
        dfa->work++;
        if (seen[index] == dfa->mark) {
            continue;
        }
        seen[index] = dfa->mark;
        switch (s->kind) {
        case SWX_SPLIT:
            dfa->stack[depth++] = s->value;
            dfa->stack[depth++] = s->out;
            break;
        case SWX_ASSERT:
            if (holds(dfa, s->value, context, what, letter, &later) && !later) {
                dfa->stack[depth++] = s->out;
            } else if (later) {
                out->items[out->count++] = index;
            }
            break;
        default: out->items[out->count++] = index;
        }
    }
}

static void new_mark(swx_dfa *dfa)
{
    if (++dfa->mark == 0) {
        memset(dfa->seen, 0, 3 * dfa->counts.states * sizeof(*dfa->seen)); /* all three */
        dfa->mark = 1;
    }
}

static int ascending(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

/* The least pattern that ends in a sorted group when the text ends here; + 1, 0 for none.  The states of a pattern come
 * before those of the next, so it is the first that is found. */
static uint32_t pattern_ending(swx_dfa *dfa, const uint32_t *items, size_t count, unsigned context)
{
    dfa->now.count = 0;
    for (size_t i = 0; i < count; i++) {
        const swx_nfa_state *s = &dfa->nfa[items[i]];
        if (s->kind == SWX_MATCH || s->kind == SWX_ASSERT) {
            close_over(dfa, items[i], context, FOLLOWS_END, 0, dfa->seen_end, &dfa->now);
        }
    }
    for (size_t i = 0; i < dfa->now.count; i++) {
        const swx_nfa_state *s = &dfa->nfa[dfa->now.items[i]];
        if (s->kind == SWX_MATCH) {
            return s->value + 1;
        }
    }
    return 0;
}

/* ---- one step of the subset construction ---- */

/* Appends to next what the NFA states of one group become by reading the letter.  Returns how many. */
static size_t step_group(swx_dfa *dfa, const uint32_t *items, size_t count, unsigned context, uint32_t letter,
                         unsigned after)
{
    size_t begin = dfa->next.count;
    dfa->now.count = 0;
    for (size_t i = 0; i < count; i++) {
        close_over(dfa, items[i] & ~FIRST, context, FOLLOWS_LETTER, letter, dfa->seen, &dfa->now);
    }
    for (size_t i = 0; i < dfa->now.count; i++) {
        const swx_nfa_state *s = &dfa->nfa[dfa->now.items[i]];
        if (s->kind == SWX_READ && has(dfa, s->value, letter)) {
            close_over(dfa, s->out, after, FOLLOWS_UNKNOWN, 0, dfa->seen_next, &dfa->next);
        }
    }
    return dfa->next.count - begin;
}

/* Adds a group to the state being made, from old group `from`; true when it is a hit. */
static bool step(swx_dfa *dfa, const uint32_t *items, size_t count, unsigned context, uint32_t letter, uint16_t from)
{
    unsigned after = context_after(dfa, letter);
    size_t added = step_group(dfa, items, count, context, letter, after);
    if (added == 0) {
        return false;
    }
    uint32_t *group = dfa->next.items + dfa->next.count - added;
    qsort(group, added, sizeof(*group), ascending);
    dfa->made.pattern = pattern_ending(dfa, group, added, after);
    dfa->made.from = from;
    group[0] |= FIRST;
    dfa->next_map[dfa->next_groups++] = from;
    return dfa->made.pattern != 0;
}

/* Fills next, next_map and made with what follows on a letter. */
static void make_next(swx_dfa *dfa, uint32_t row, uint32_t letter)
{
    const state *source = state_of_row(dfa, row);
    const uint32_t *keys = keys_of(dfa, source);
    bool hit = false;
    new_mark(dfa);
    dfa->next.count = 0;
    dfa->next_groups = 0;
    dfa->made = (swx_dfa_move){ 0 };
    for (uint32_t at = 0, group = 0, end; at < source->count && !hit; at = end, group++) {
        for (end = at + 1; end < source->count && !(keys[end] & FIRST); end++) {
        }
        hit = step(dfa, keys + at, end - at, source->context, letter, (uint16_t)group);
    }
    if (!hit) {
        step(dfa, dfa->starts, dfa->counts.patterns, source->context, letter, SWX_DFA_FRESH);
    }
}

/* ---- the cache ---- */

static uint32_t hash_key(const uint32_t *items, size_t count, unsigned context)
{
    uint64_t hash = context + UINT64_C(0x9E3779B97F4A7C15);
    for (size_t i = 0; i < count; i++) {
        hash = (hash ^ items[i]) * UINT64_C(0xFF51AFD7ED558CCD);
        hash ^= hash >> 29;
    }
    return (uint32_t)(hash ^ hash >> 32);
}

/* Adds a state with an empty row. */
static bool add_state(swx_dfa *dfa, const uint32_t *items, size_t count, unsigned context, uint32_t hash)
{
    uint32_t *bucket = &dfa->buckets[hash % SWX_DFA_BUCKETS];
    uint32_t first = (uint32_t)(dfa->keys.size / sizeof(*items));
    state added = { first, (uint32_t)count, hash, *bucket, (uint8_t)context };
    if (!add(&dfa->rows, dfa->new_row, dfa->counts.letters * sizeof(*dfa->new_row)) ||
        !add(&dfa->keys, items, count * sizeof(*items)) || !add(&dfa->states, &added, sizeof(added))) {
        return false;
    }
    *bucket = state_count(dfa);
    return true;
}

/* Finds or adds a state; *row is its row. */
static bool intern(swx_dfa *dfa, const uint32_t *items, size_t count, unsigned context, uint32_t *row)
{
    uint32_t hash = hash_key(items, count, context);
    for (uint32_t number = dfa->buckets[hash % SWX_DFA_BUCKETS]; number; number = state_at(dfa, number - 1)->next) {
        const state *s = state_at(dfa, number - 1);
        if (s->hash == hash && s->count == count && s->context == context &&
            (count == 0 || memcmp(keys_of(dfa, s), items, count * sizeof(*items)) == 0)) {
            *row = (number - 1) * dfa->counts.letters;
            return true;
        }
    }
    *row = state_count(dfa) * dfa->counts.letters;
    return add_state(dfa, items, count, context, hash);
}

bool swx_dfa_start_cache(swx_dfa *dfa)
{
    uint32_t row;
    swx_buf_clear(&dfa->rows);
    swx_buf_clear(&dfa->states);
    swx_buf_clear(&dfa->keys);
    swx_buf_clear(&dfa->moves);
    swx_buf_clear(&dfa->maps);
    memset(dfa->buckets, 0, SWX_DFA_BUCKETS * sizeof(*dfa->buckets));
    bool good = intern(dfa, NULL, 0, 0, &row);
    for (uint32_t letter = 0; letter < dfa->counts.letters && good && dfa->watched; letter++) {
        good = intern(dfa, NULL, 0, context_after(dfa, letter), &row);
    }
    dfa->idle_rows = state_count(dfa) * dfa->counts.letters;
    return good && intern(dfa, NULL, 0, SWX_AT_START & dfa->watched, &row);
}

static bool cache_is_full(const swx_dfa *dfa)
{
    size_t used = dfa->rows.size + dfa->states.size + dfa->keys.size + dfa->moves.size + dfa->maps.size;
    return used >= dfa->budget;
}

/* Whether a transition leaves every register where it is. */
static bool is_plain(const swx_dfa *dfa)
{
    for (size_t group = 0; group < dfa->next_groups; group++) {
        if (dfa->next_map[group] != group) {
            return false;
        }
    }
    return dfa->made.pattern == 0;
}

static bool keep_move(swx_dfa *dfa, uint32_t *entry)
{
    size_t groups = dfa->made.pattern ? 0 : dfa->next_groups;
    dfa->made.map = (uint32_t)(dfa->maps.size / sizeof(*dfa->next_map));
    dfa->made.groups = (uint16_t)groups;
    *entry = SWX_DFA_SPECIAL | (uint32_t)(dfa->moves.size / sizeof(dfa->made));
    return add(&dfa->maps, dfa->next_map, groups * sizeof(*dfa->next_map)) &&
           add(&dfa->moves, &dfa->made, sizeof(dfa->made));
}

bool swx_dfa_make_entry(swx_dfa *dfa, uint32_t row, uint32_t letter, uint32_t *entry)
{
    bool forget = cache_is_full(dfa);
    make_next(dfa, row, letter);
    if (forget && !swx_dfa_start_cache(dfa)) {
        return false;
    }
    if (!dfa->made.pattern &&
        !intern(dfa, dfa->next.items, dfa->next.count, context_after(dfa, letter), &dfa->made.row)) {
        return false;
    }
    if (is_plain(dfa)) {
        *entry = dfa->made.row;
    } else if (!keep_move(dfa, entry)) {
        return false;
    }
    if (!forget) {
        swx_dfa_rows(dfa)[row + letter] = *entry;
    }
    return true;
}

/* ---- construction ---- */

static void watch(swx_dfa *dfa)
{
    static const uint8_t asked[] = { [SWX_AT_BEGIN] = SWX_AT_START,
                                     [SWX_AT_LINE_BEGIN] = SWX_AT_START | SWX_AFTER_NEWLINE,
                                     [SWX_AT_BOUNDARY] = SWX_AFTER_WORD,
                                     [SWX_AT_NO_BOUNDARY] = SWX_AFTER_WORD,
                                     [SWX_AT_ASCII_BOUNDARY] = SWX_AFTER_ASCII_WORD,
                                     [SWX_AT_ASCII_NO_BOUNDARY] = SWX_AFTER_ASCII_WORD };
    for (size_t i = 0; i < dfa->counts.states; i++) {
        dfa->watched |= dfa->nfa[i].kind == SWX_ASSERT ? asked[dfa->nfa[i].value] : 0;
    }
}

static bool make_scratch(swx_dfa *dfa)
{
    size_t count = dfa->counts.states;
    dfa->seen = calloc(8 * count + dfa->counts.letters, sizeof(uint32_t));
    dfa->next_map = malloc((count + 1) * sizeof(*dfa->next_map));
    dfa->buckets = malloc(SWX_DFA_BUCKETS * sizeof(*dfa->buckets));
    if (!dfa->seen || !dfa->next_map || !dfa->buckets) {
        return false;
    }
    dfa->seen_next = dfa->seen + count;
    dfa->seen_end = dfa->seen + 2 * count;
    dfa->now.items = dfa->seen + 3 * count;
    dfa->next.items = dfa->seen + 4 * count;
    dfa->stack = dfa->seen + 5 * count; /* two entries a state, and one to begin with */
    dfa->new_row = dfa->seen + 8 * count;
    memset(dfa->new_row, 0xFF, dfa->counts.letters * sizeof(*dfa->new_row)); /* SWX_DFA_UNKNOWN */
    return true;
}

bool swx_dfa_init(swx_dfa *dfa)
{
    dfa->budget = SWX_MATCH_CACHE;
    swx_buf_init(&dfa->rows, SIZE_MAX);
    dfa->states = dfa->keys = dfa->moves = dfa->maps = dfa->rows;
    watch(dfa);
    return make_scratch(dfa) && swx_dfa_start_cache(dfa);
}

void swx_dfa_free(swx_dfa *dfa)
{
    swx_buf_free(&dfa->rows);
    swx_buf_free(&dfa->states);
    swx_buf_free(&dfa->keys);
    swx_buf_free(&dfa->moves);
    swx_buf_free(&dfa->maps);
    free(dfa->buckets);
    free(dfa->seen);
    free(dfa->next_map);
}
