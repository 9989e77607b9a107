/* Subset construction on demand, with groups.  See the header for the picture. */
#include "swx_dfa.h"

#include <string.h>

#include "swx_alloc.h"

#define SPECIAL 0x80000000u /* table entry: number of a move, not the next row */
#define UNKNOWN 0xFFFFFFFFu /* table entry: not made yet */
#define FIRST 0x80000000u   /* in a key: this NFA state opens a group */
#define FRESH 0xFFFFu       /* in a map: the group that begins with the character at hand */

enum { RECENT = 256 }; /* a power of two */

/* What is known of the place before the next character.  A state of the DFA is bound to one such context. */
enum { AFTER_NEWLINE = 1, AFTER_WORD = 2, AFTER_ASCII_WORD = 4, AT_BEGIN = 8, CONTEXTS = 16 };

typedef struct {
    uint32_t first, count; /* keys[first .. first+count) */
    uint32_t hash;
    uint16_t groups;
    uint8_t context;
} state;

/* A transition that moves registers or is a hit. */
typedef struct {
    uint32_t row;
    uint32_t map;    /* maps[map .. map+groups): for each new group the old one, or FRESH */
    uint16_t groups;
    uint16_t from;   /* of a hit: the old group, or FRESH */
    uint32_t pattern; /* of a hit, + 1; 0: no hit */
} move;

typedef struct {
    uint32_t *items;
    size_t count;
} list;

/* A growing array inside the cache. */
typedef struct {
    void *items;
    size_t count, capacity, width;
} pool;

struct swx_dfa {
    const swx_nfa *nfa;
    const swx_alphabet *alphabet;
    const swx_skip *skip;
    size_t columns, budget;
    uint8_t watched; /* the contexts that some assertion asks for */
    bool late;       /* some assertion asks for what follows */

    pool rows, states, keys, moves, maps; /* the cache */
    uint32_t *table;                      /* hash table of state numbers + 1 */
    size_t table_size;
    uint32_t idle_rows; /* rows below this number have no group: nothing is alive but the starts */

    list fresh[CONTEXTS]; /* the starts, per context */

    /* scratch, each with room for every NFA state */
    uint32_t *seen, *seen_next, *seen_end, *stack;
    uint32_t mark;
    list now, next;   /* `next` holds the groups of the state being made, with FIRST */
    uint16_t *next_map; /* per new group the old one */
    size_t next_groups;
    move made;        /* the move at hand, when it could not be kept */
    uint64_t work;    /* states of the NFA that were looked at since the last reset */

    /* the stream */
    uint32_t row;
    uint64_t *registers;
    uint64_t offset;
    uint32_t code_point;
    uint8_t pending, needed; /* bytes of a UTF-8 sequence read, and still to come */
    uint8_t low, high;       /* bounds of the next byte of the sequence */
    uint8_t owed;            /* invalid bytes just before offset that are still to be taken */
    swx_status failed;

    struct {
        uint32_t code_point;
        uint32_t letter;
    } recent[RECENT]; /* letters of characters met lately; by the low bits; 0: unused */
};

/* ---- pools ---- */

static bool pool_reserve(pool *p, size_t more)
{
    if (p->capacity - p->count >= more) {
        return true;
    }
    size_t capacity = p->capacity ? p->capacity * 2 : 64;
    while (capacity - p->count < more) {
        capacity *= 2;
    }
    void *items = swx_realloc(p->items, capacity * p->width);
    if (!items) {
        return false;
    }
    p->items = items;
    p->capacity = capacity;
    return true;
}

static size_t pool_bytes(const pool *p) { return p->count * p->width; }

static uint32_t *row_at(const swx_dfa *dfa, uint32_t row) { return (uint32_t *)dfa->rows.items + row; }
static state *state_at(const swx_dfa *dfa, size_t number) { return (state *)dfa->states.items + number; }
static const state *state_of_row(const swx_dfa *dfa, uint32_t row) { return state_at(dfa, row / dfa->columns); }
static const uint32_t *keys_of(const swx_dfa *dfa, const state *s) { return (const uint32_t *)dfa->keys.items + s->first; }

/* ---- contexts ---- */

static unsigned context_after(const swx_dfa *dfa, uint32_t letter)
{
    const swx_alphabet *a = dfa->alphabet;
    unsigned context = letter == a->newline ? AFTER_NEWLINE : 0;
    context |= a->word && swx_letter_in(a->word, letter) ? AFTER_WORD : 0;
    context |= a->ascii_word && swx_letter_in(a->ascii_word, letter) ? AFTER_ASCII_WORD : 0;
    return context & dfa->watched;
}

/* What follows a place, seen from an assertion. */
typedef enum { FOLLOWS_UNKNOWN, FOLLOWS_LETTER, FOLLOWS_END } following;

/* Whether an assertion holds between `context` and what follows.  *later is set when that cannot be known yet. */
static bool holds(const swx_dfa *dfa, uint32_t assertion, unsigned context, following what, uint32_t letter, bool *later)
{
    const swx_alphabet *a = dfa->alphabet;
    bool before, after;
    *later = false;
    switch (assertion) {
    case SWX_AT_BEGIN: return context & AT_BEGIN;
    case SWX_AT_LINE_BEGIN: return context & (AT_BEGIN | AFTER_NEWLINE);
    default: break;
    }
    *later = what == FOLLOWS_UNKNOWN;
    switch (assertion) {
    case SWX_AT_END:
    case SWX_AT_LAST_LINE: return what == FOLLOWS_END;
    case SWX_AT_LINE_END: return what == FOLLOWS_END || letter == a->newline;
    case SWX_AT_BOUNDARY:
    case SWX_AT_NO_BOUNDARY:
        before = context & AFTER_WORD;
        after = what == FOLLOWS_LETTER && swx_letter_in(a->word, letter);
        return (before != after) == (assertion == SWX_AT_BOUNDARY);
    default:
        before = context & AFTER_ASCII_WORD;
        after = what == FOLLOWS_LETTER && swx_letter_in(a->ascii_word, letter);
        return (before != after) == (assertion == SWX_AT_ASCII_BOUNDARY);
    }
}

/* ---- closures ---- */

/* Appends to `out` what is reachable from `start` without reading, but what `seen` carries the mark of already.
 * Kept are the states that read, matches, and the assertions that need to know what follows. */
static void close_over(swx_dfa *dfa, uint32_t start, unsigned context, following what, uint32_t letter, uint32_t *seen,
                       list *out)
{
    size_t depth = 0;
    dfa->stack[depth++] = start;
    while (depth) {
        uint32_t index = dfa->stack[--depth];
        const swx_nfa_state *s = &dfa->nfa->states[index];
        bool later = false;
        dfa->work++;
        if (seen[index] == dfa->mark) {
            continue;
        }
        seen[index] = dfa->mark;
        switch (s->kind) {
        case SWX_NFA_SPLIT:
            dfa->stack[depth++] = s->value;
            dfa->stack[depth++] = s->out;
            break;
        case SWX_NFA_ASSERT:
            if (holds(dfa, s->value, context, what, letter, &later) && !later) {
                dfa->stack[depth++] = s->out;
            } else if (later) {
                out->items[out->count++] = index;
            }
            break;
        default:
            out->items[out->count++] = index;
        }
    }
}

static void new_mark(swx_dfa *dfa)
{
    if (++dfa->mark == 0) {
        memset(dfa->seen, 0, dfa->nfa->count * sizeof(*dfa->seen));
        memset(dfa->seen_next, 0, dfa->nfa->count * sizeof(*dfa->seen_next));
        memset(dfa->seen_end, 0, dfa->nfa->count * sizeof(*dfa->seen_end));
        dfa->mark = 1;
    }
}

static bool reads(const swx_dfa *dfa, const swx_nfa_state *s, uint32_t letter)
{
    if (s->kind == SWX_NFA_CLASS) {
        return swx_letter_in(swx_alphabet_class(dfa->alphabet, s->value), letter);
    }
    /* a character of a pattern has a letter to itself */
    return s->kind == SWX_NFA_CHAR && dfa->alphabet->letters[swx_alphabet_find(dfa->alphabet, s->value)] == letter;
}

static int ascending(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static void sort(uint32_t *items, size_t count)
{
    if (count > 24) {
        qsort(items, count, sizeof(*items), ascending);
        return;
    }
    for (size_t i = 1; i < count; i++) {
        uint32_t item = items[i];
        size_t at = i;
        for (; at > 0 && items[at - 1] > item; at--) {
            items[at] = items[at - 1];
        }
        items[at] = item;
    }
}

/* The least pattern that ends in a sorted group when the text ends here; + 1, 0 for none.  The states of a pattern come
 * before those of the next, so it is the first that is found. */
static uint32_t pattern_ending(swx_dfa *dfa, const uint32_t *items, size_t count, unsigned context)
{
    dfa->now.count = 0;
    for (size_t i = 0; i < count; i++) {
        const swx_nfa_state *s = &dfa->nfa->states[items[i]];
        if (s->kind == SWX_NFA_MATCH || (dfa->late && s->kind == SWX_NFA_ASSERT)) {
            close_over(dfa, items[i], context, FOLLOWS_END, 0, dfa->seen_end, &dfa->now);
        }
    }
    for (size_t i = 0; i < dfa->now.count; i++) {
        const swx_nfa_state *s = &dfa->nfa->states[dfa->now.items[i]];
        if (s->kind == SWX_NFA_MATCH) {
            return s->value + 1;
        }
    }
    return 0;
}

/* ---- one step of the subset construction ---- */

/* Appends to next what the NFA states of one group become by reading the letter.  Returns how many. */
static size_t step_group(swx_dfa *dfa, const uint32_t *items, size_t count, unsigned context, uint32_t letter, unsigned after)
{
    size_t begin = dfa->next.count;
    dfa->now.count = 0;
    for (size_t i = 0; i < count; i++) {
        close_over(dfa, items[i] & ~FIRST, context, FOLLOWS_LETTER, letter, dfa->seen, &dfa->now);
    }
    for (size_t i = 0; i < dfa->now.count; i++) {
        const swx_nfa_state *s = &dfa->nfa->states[dfa->now.items[i]];
        if (reads(dfa, s, letter)) {
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
    sort(group, added);
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
    dfa->made = (move){ 0 };
    for (uint32_t at = 0, group = 0, end; at < source->count && !hit; at = end, group++) {
        for (end = at + 1; end < source->count && !(keys[end] & FIRST); end++) {
        }
        hit = step(dfa, keys + at, end - at, source->context, letter, (uint16_t)group);
    }
    if (!hit) {
        list fresh = dfa->fresh[source->context];
        step(dfa, fresh.items, fresh.count, source->context, letter, FRESH);
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

static bool grow_table(swx_dfa *dfa)
{
    size_t size = dfa->table_size ? dfa->table_size * 2 : 64;
    uint32_t *table = swx_calloc(size, sizeof(*table));
    if (!table) {
        return false;
    }
    for (size_t number = 0; number < dfa->states.count; number++) {
        size_t slot = state_at(dfa, number)->hash & (size - 1);
        while (table[slot]) {
            slot = (slot + 1) & (size - 1);
        }
        table[slot] = (uint32_t)number + 1;
    }
    swx_free(dfa->table);
    dfa->table = table;
    dfa->table_size = size;
    return true;
}

/* Adds a state with an empty row behind table slot `slot`. */
static bool add_state(swx_dfa *dfa, size_t slot, const uint32_t *items, size_t count, size_t groups, unsigned context, uint32_t hash)
{
    if (!pool_reserve(&dfa->rows, dfa->columns) || !pool_reserve(&dfa->states, 1) || !pool_reserve(&dfa->keys, count + 1)) {
        return false;
    }
    uint32_t *keys = (uint32_t *)dfa->keys.items + dfa->keys.count;
    if (count) {
        memcpy(keys, items, count * sizeof(*items));
    }
    *state_at(dfa, dfa->states.count) =
        (state){ (uint32_t)dfa->keys.count, (uint32_t)count, hash, (uint16_t)groups, (uint8_t)context };
    memset((uint32_t *)dfa->rows.items + dfa->rows.count, 0xFF, dfa->columns * sizeof(uint32_t));
    dfa->rows.count += dfa->columns;
    dfa->keys.count += count;
    dfa->table[slot] = (uint32_t)++dfa->states.count;
    return true;
}

/* Finds or adds a state; *row is its row. */
static bool intern(swx_dfa *dfa, const uint32_t *items, size_t count, size_t groups, unsigned context, uint32_t *row)
{
    if ((dfa->states.count + 1) * 2 > dfa->table_size && !grow_table(dfa)) {
        return false;
    }
    uint32_t hash = hash_key(items, count, context);
    size_t slot = hash & (dfa->table_size - 1);
    for (; dfa->table[slot]; slot = (slot + 1) & (dfa->table_size - 1)) {
        const state *s = state_at(dfa, dfa->table[slot] - 1);
        if (s->hash == hash && s->count == count && s->context == context &&
            (count == 0 || memcmp(keys_of(dfa, s), items, count * sizeof(*items)) == 0)) {
            *row = (uint32_t)((dfa->table[slot] - 1) * dfa->columns);
            return true;
        }
    }
    *row = (uint32_t)(dfa->states.count * dfa->columns);
    return add_state(dfa, slot, items, count, groups, context, hash);
}

/* Empties the cache but for the states in which nothing is alive, which come first. */
static bool start_cache(swx_dfa *dfa)
{
    uint32_t row;
    dfa->rows.count = dfa->states.count = dfa->keys.count = dfa->moves.count = dfa->maps.count = 0;
    if (dfa->table) {
        memset(dfa->table, 0, dfa->table_size * sizeof(*dfa->table));
    }
    bool good = intern(dfa, NULL, 0, 0, 0, &row);
    for (uint32_t letter = 0; letter < dfa->alphabet->count && good && dfa->watched; letter++) {
        good = intern(dfa, NULL, 0, 0, context_after(dfa, letter), &row);
    }
    dfa->idle_rows = (uint32_t)dfa->rows.count;
    return good && intern(dfa, NULL, 0, 0, AT_BEGIN & dfa->watched, &row);
}

static bool cache_is_full(const swx_dfa *dfa)
{
    size_t used = pool_bytes(&dfa->rows) + pool_bytes(&dfa->states) + pool_bytes(&dfa->keys) + pool_bytes(&dfa->moves) +
                  pool_bytes(&dfa->maps);
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
    if (!pool_reserve(&dfa->moves, 1) || !pool_reserve(&dfa->maps, groups + 1)) {
        return false;
    }
    dfa->made.map = (uint32_t)dfa->maps.count;
    dfa->made.groups = (uint16_t)groups;
    if (groups) {
        memcpy((uint16_t *)dfa->maps.items + dfa->maps.count, dfa->next_map, groups * sizeof(uint16_t));
    }
    dfa->maps.count += groups;
    ((move *)dfa->moves.items)[dfa->moves.count] = dfa->made;
    *entry = SPECIAL | (uint32_t)dfa->moves.count++;
    return true;
}

/* Makes the entry for a letter in the row at hand.  *entry is valid until the next call. */
static bool make_entry(swx_dfa *dfa, uint32_t letter, uint32_t *entry)
{
    uint32_t row = dfa->row;
    bool forget = cache_is_full(dfa);
    make_next(dfa, row, letter);
    if (forget && !start_cache(dfa)) {
        return false;
    }
    if (!dfa->made.pattern &&
        !intern(dfa, dfa->next.items, dfa->next.count, dfa->next_groups, context_after(dfa, letter), &dfa->made.row)) {
        return false;
    }
    if (is_plain(dfa)) {
        *entry = dfa->made.row;
    } else if (!keep_move(dfa, entry)) {
        return false;
    }
    if (!forget) {
        row_at(dfa, row)[letter] = *entry;
    }
    return true;
}

/* ---- the stream ---- */

static void begin(swx_dfa *dfa)
{
    /* after the idle rows; the same as row 0 when no assertion asks for the beginning */
    dfa->row = dfa->watched & AT_BEGIN ? dfa->idle_rows : 0;
    dfa->pending = 0;
}

/* Follows a move that is no hit; the letter began at offset `start`. */
static inline void follow(swx_dfa *dfa, const move *m, uint64_t start)
{
    const uint16_t *map = (const uint16_t *)dfa->maps.items + m->map;
    for (size_t group = 0; group < m->groups; group++) { /* groups only move down, so the order is safe */
        dfa->registers[group] = map[group] == FRESH ? start : dfa->registers[map[group]];
    }
    dfa->row = m->row;
}

/* Takes one letter, which began at offset `start` and ends before `end`. */
static swx_status take(swx_dfa *dfa, uint32_t letter, uint64_t start, uint64_t end, swx_hit *hit)
{
    uint32_t entry = row_at(dfa, dfa->row)[letter];
    if (entry == UNKNOWN) {
        bool cheap = dfa->work <= SWX_DFA_WORK + start * SWX_DFA_WORK_PER_BYTE;
        if (!cheap || !make_entry(dfa, letter, &entry)) {
            return dfa->failed = cheap ? SWX_ENOMEM : SWX_ELIMIT;
        }
    }
    if (!(entry & SPECIAL)) {
        dfa->row = entry;
        return SWX_MORE;
    }
    const move *m = (const move *)dfa->moves.items + (entry & ~SPECIAL);
    if (m->pattern) {
        *hit = (swx_hit){ m->pattern - 1, m->from == FRESH ? start : dfa->registers[m->from], end };
        begin(dfa);
        return SWX_OK;
    }
    follow(dfa, m, start);
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

/* Nothing is alive: goes to where something may begin.  Where assertions ask for the character before it, that one is
 * read again; it cannot begin a match, so the wrong context that it is read in does no harm. */
static size_t skip_idle(swx_dfa *dfa, const uint8_t *bytes, size_t at, size_t size)
{
    size_t found = swx_skip_find(dfa->skip, bytes, at, size);
    if (found > at) {
        size_t from = dfa->watched & ~(unsigned)AT_BEGIN ? back_to_character(bytes, at, found - 1) : found;
        if (from > at) {
            dfa->row = 0;
        }
        at = from;
    }
    return at;
}

/* Follows entries that are made and are no hits, through ASCII and until nothing is alive; returns where it stopped. */
static size_t run_alive(swx_dfa *dfa, const uint8_t *bytes, size_t at, size_t size, uint32_t idle)
{
    const uint32_t *rows = dfa->rows.items;
    const uint16_t *letters = dfa->alphabet->ascii;
    uint32_t row = dfa->row;
    while (at < size && bytes[at] < 0x80) {
        uint32_t entry = rows[row + letters[bytes[at]]];
        if (entry >= SPECIAL) {
            if (entry == UNKNOWN) {
                break;
            }
            const move *m = (const move *)dfa->moves.items + (entry & ~SPECIAL);
            if (m->pattern) {
                break;
            }
            follow(dfa, m, dfa->offset + at);
            entry = m->row;
        }
        row = entry;
        at++;
        if (row < idle) {
            break;
        }
    }
    dfa->row = row;
    return at;
}

/* Goes on as far as nothing needs to be made, decoded or reported: to the byte that does, or to size. */
static size_t run(swx_dfa *dfa, const uint8_t *bytes, size_t at, size_t size)
{
    uint32_t idle = dfa->skip->useful ? dfa->idle_rows : 0;
    for (size_t before = size; at < size && at != before;) {
        if (dfa->row < idle) {
            at = skip_idle(dfa, bytes, at, size);
        }
        before = at;
        at = run_alive(dfa, bytes, at, size, idle);
        if (dfa->row >= idle) {
            break;
        }
    }
    return at;
}

typedef enum { DECODE_MORE, DECODE_CHARACTER, DECODE_INVALID, DECODE_BROKEN } decoded;

/* One byte of text that is not plain ASCII.  Well-formed sequences: The Unicode Standard, table 3-7. */
static decoded decode(swx_dfa *dfa, uint8_t byte)
{
    if (dfa->pending) {
        if (byte < dfa->low || byte > dfa->high) {
            return DECODE_BROKEN;
        }
        dfa->code_point = dfa->code_point << 6 | (byte & 0x3F);
        dfa->low = 0x80;
        dfa->high = 0xBF;
        dfa->pending++;
        return --dfa->needed ? DECODE_MORE : DECODE_CHARACTER;
    }
    if (byte < 0xC2 || byte > 0xF4) {
        return DECODE_INVALID;
    }
    dfa->needed = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    dfa->code_point = byte & (0x3Fu >> dfa->needed);
    dfa->low = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
    dfa->high = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
    dfa->pending = 1;
    return DECODE_MORE;
}

/* The letter of the character just decoded, which is not ASCII.  A text keeps to few characters, so most are known. */
static uint32_t letter_of_character(swx_dfa *dfa)
{
    uint32_t c = dfa->code_point;
    size_t slot = c & (RECENT - 1);
    if (dfa->recent[slot].code_point != c) {
        dfa->recent[slot].code_point = c;
        dfa->recent[slot].letter = dfa->alphabet->letters[swx_alphabet_find(dfa->alphabet, c)];
    }
    return dfa->recent[slot].letter;
}

/* Takes one byte that `run` stopped at.  *at moves on unless the byte broke a sequence. */
static swx_status take_byte(swx_dfa *dfa, const uint8_t *bytes, size_t *at, swx_hit *hit)
{
    const swx_alphabet *a = dfa->alphabet;
    uint8_t byte = bytes[*at];
    uint64_t place = dfa->offset + *at, start;
    if (byte < 0x80 && !dfa->pending) {
        ++*at;
        return take(dfa, a->ascii[byte], place, place + 1, hit);
    }
    switch (decode(dfa, byte)) {
    case DECODE_BROKEN:
        dfa->owed = dfa->pending;
        dfa->pending = 0;
        return SWX_MORE;
    case DECODE_INVALID:
        ++*at;
        return take(dfa, a->invalid, place, place + 1, hit);
    case DECODE_CHARACTER:
        ++*at;
        start = place + 1 - dfa->pending;
        dfa->pending = 0;
        return take(dfa, letter_of_character(dfa), start, place + 1, hit);
    case DECODE_MORE:
    default:
        ++*at;
        return SWX_MORE;
    }
}

swx_status swx_dfa_feed(swx_dfa *dfa, const uint8_t *bytes, size_t size, size_t *consumed, swx_hit *hit)
{
    swx_status status = dfa->failed;
    size_t at = 0;
    while (status == SWX_MORE && (dfa->owed || at < size)) {
        if (dfa->owed) {
            uint64_t start = dfa->offset + at - dfa->owed--;
            status = take(dfa, dfa->alphabet->invalid, start, start + 1, hit);
            continue;
        }
        if (!dfa->pending) {
            at = run(dfa, bytes, at, size);
        }
        if (at < size) {
            status = take_byte(dfa, bytes, &at, hit);
        }
    }
    dfa->offset += at;
    *consumed = at;
    return status;
}

void swx_dfa_reset(swx_dfa *dfa)
{
    /* A failed allocation may have left the cache half made. */
    bool good = dfa->failed == SWX_MORE || start_cache(dfa);
    dfa->failed = good ? SWX_MORE : SWX_ENOMEM;
    dfa->offset = 0;
    dfa->owed = 0;
    dfa->work = 0;
    begin(dfa);
}

/* ---- construction ---- */

static void watch(swx_dfa *dfa)
{
    for (size_t i = 0; i < dfa->nfa->count; i++) {
        const swx_nfa_state *s = &dfa->nfa->states[i];
        if (s->kind != SWX_NFA_ASSERT) {
            continue;
        }
        switch (s->value) {
        case SWX_AT_BEGIN: dfa->watched |= AT_BEGIN; break;
        case SWX_AT_LINE_BEGIN: dfa->watched |= AT_BEGIN | AFTER_NEWLINE; break;
        case SWX_AT_BOUNDARY:
        case SWX_AT_NO_BOUNDARY: dfa->watched |= AFTER_WORD; break;
        case SWX_AT_ASCII_BOUNDARY:
        case SWX_AT_ASCII_NO_BOUNDARY: dfa->watched |= AFTER_ASCII_WORD; break;
        default: break;
        }
        dfa->late |= s->value >= SWX_AT_END;
    }
}

/* The starts of all patterns in every context that can occur. */
static bool make_fresh(swx_dfa *dfa)
{
    for (unsigned context = 0; context < CONTEXTS; context++) {
        if (context & ~(unsigned)dfa->watched) {
            continue;
        }
        new_mark(dfa);
        dfa->now.count = 0;
        for (size_t i = 0; i < dfa->nfa->patterns; i++) {
            close_over(dfa, dfa->nfa->starts[i], context, FOLLOWS_UNKNOWN, 0, dfa->seen, &dfa->now);
        }
        uint32_t *items = swx_malloc(dfa->now.count * sizeof(*items));
        if (!items) {
            return false;
        }
        if (dfa->now.count) {
            memcpy(items, dfa->now.items, dfa->now.count * sizeof(*items));
        }
        dfa->fresh[context] = (list){ items, dfa->now.count };
    }
    return true;
}

static bool make_scratch(swx_dfa *dfa)
{
    size_t count = dfa->nfa->count;
    dfa->seen = swx_calloc(8 * count, sizeof(uint32_t));
    dfa->next_map = swx_malloc((count + 1) * sizeof(*dfa->next_map));
    dfa->registers = swx_calloc(count + 1, sizeof(*dfa->registers));
    if (!dfa->seen || !dfa->next_map || !dfa->registers) {
        return false;
    }
    dfa->seen_next = dfa->seen + count;
    dfa->seen_end = dfa->seen + 2 * count;
    dfa->now.items = dfa->seen + 3 * count;
    dfa->next.items = dfa->seen + 4 * count;
    dfa->stack = dfa->seen + 5 * count; /* two entries a state, and one to begin with */
    return true;
}

swx_status swx_dfa_new(swx_dfa **out, const swx_nfa *nfa, const swx_alphabet *alphabet, const swx_skip *skip, size_t cache)
{
    swx_dfa *dfa = swx_calloc(1, sizeof(*dfa));
    *out = NULL;
    if (!dfa) {
        return SWX_ENOMEM;
    }
    dfa->nfa = nfa;
    dfa->alphabet = alphabet;
    dfa->skip = skip;
    dfa->columns = alphabet->count;
    dfa->budget = cache;
    dfa->rows.width = dfa->keys.width = sizeof(uint32_t);
    dfa->states.width = sizeof(state);
    dfa->moves.width = sizeof(move);
    dfa->maps.width = sizeof(uint16_t);
    dfa->failed = SWX_MORE;
    watch(dfa);
    if (!make_scratch(dfa) || !make_fresh(dfa) || !start_cache(dfa)) {
        swx_dfa_free(dfa);
        return SWX_ENOMEM;
    }
    begin(dfa);
    *out = dfa;
    return SWX_OK;
}

void swx_dfa_free(swx_dfa *dfa)
{
    if (!dfa) {
        return;
    }
    for (unsigned context = 0; context < CONTEXTS; context++) {
        swx_free(dfa->fresh[context].items);
    }
    swx_free(dfa->rows.items);
    swx_free(dfa->states.items);
    swx_free(dfa->keys.items);
    swx_free(dfa->moves.items);
    swx_free(dfa->maps.items);
    swx_free(dfa->table);
    swx_free(dfa->seen);
    swx_free(dfa->next_map);
    swx_free(dfa->registers);
    swx_free(dfa);
}
