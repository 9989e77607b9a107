/* swx_dfa.h: the states of the lazy DFA behind swx_match.h, which has the picture. */
#ifndef SWX_DFA_H
#define SWX_DFA_H

#include "swx_buf.h"
#include "swx_match.h"

#define SWX_DFA_SPECIAL 0x80000000u /* table entry: number of a move, not the next row */
#define SWX_DFA_UNKNOWN 0xFFFFFFFFu /* table entry: not made yet */
#define SWX_DFA_FRESH 0xFFFFu       /* in a map: the group that begins with the character at hand */

/* The context before the next character.  A state of the DFA belongs to one context. */
enum { SWX_AFTER_NEWLINE = 1, SWX_AFTER_WORD = 2, SWX_AFTER_ASCII_WORD = 4, SWX_AT_START = 8 };

enum { SWX_DFA_BUCKETS = 4096 };

typedef struct {
    uint32_t kind, value, out;
} swx_nfa_state;

/* A transition that moves registers or is a hit. */
typedef struct {
    uint32_t row;
    uint32_t map; /* maps[map .. map+groups): for each new group the old one, or SWX_DFA_FRESH */
    uint16_t groups;
    uint16_t from;    /* of a hit: the old group, or SWX_DFA_FRESH */
    uint32_t pattern; /* of a hit, + 1; 0: no hit */
} swx_dfa_move;

typedef struct {
    uint32_t *items;
    size_t count;
} swx_dfa_list;

typedef struct {
    /* the program, which the caller sets and keeps */
    swx_match_counts counts;
    const swx_nfa_state *nfa;
    const uint32_t *starts, *sets;
    uint32_t newline; /* letter */

    uint8_t watched; /* the contexts that some assertion asks for */

    size_t budget;                           /* bytes of the cache */
    swx_buf rows, states, keys, moves, maps; /* the cache: of uint32_t, states, uint32_t, swx_dfa_move, uint16_t */
    uint32_t *buckets;                       /* hash table of state numbers + 1 */
    uint32_t idle_rows;                      /* rows below this number have no group: nothing is alive but the starts */
    uint32_t *new_row;                       /* of entries that are not made yet */

    /* scratch, each with room for every NFA state */
    uint32_t *seen, *seen_next, *seen_end, *stack;
    uint32_t mark;
    swx_dfa_list now, next; /* `next` holds the groups of the state being made */
    uint16_t *next_map;     /* per new group the old one */
    size_t next_groups;
    swx_dfa_move made; /* the move at hand, when it could not be kept */
    uint64_t work;     /* states of the NFA that were looked at, or could have been, ever */
} swx_dfa;

/* Words of a set of letters, a bit a letter. */
static inline size_t swx_dfa_width(const swx_dfa *dfa) { return ((size_t)dfa->counts.letters + 31) / 32; }

static inline uint32_t *swx_dfa_rows(const swx_dfa *dfa) { return (uint32_t *)(void *)dfa->rows.data; }

/* What an entry with SWX_DFA_SPECIAL stands for. */
static inline const swx_dfa_move *swx_dfa_move_of(const swx_dfa *dfa, uint32_t entry)
{
    return (const swx_dfa_move *)(const void *)dfa->moves.data + (entry & ~SWX_DFA_SPECIAL);
}

/* Makes the first states, once the program is set.  False: out of memory; swx_dfa_free is legal after any result. */
bool swx_dfa_init(swx_dfa *dfa);
void swx_dfa_free(swx_dfa *dfa);

/* Empties the cache, and makes the states in which nothing is alive.  False: out of memory. */
bool swx_dfa_start_cache(swx_dfa *dfa);

/* Makes the entry for a letter in a row.  *entry is valid until the next call.  False: out of memory. */
bool swx_dfa_make_entry(swx_dfa *dfa, uint32_t row, uint32_t letter, uint32_t *entry);

#endif
