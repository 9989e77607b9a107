/* swx_nfa.h: syntax trees to one Thompson NFA over characters, for a whole list of patterns. */
#ifndef SWX_NFA_H
#define SWX_NFA_H

#include "swx_regex.h"

#define SWX_NFA_MAX_STATES 16384u

typedef enum {
    SWX_NFA_CHAR,   /* value: code point; goes to out */
    SWX_NFA_CLASS,  /* value: class of the regex; goes to out */
    SWX_NFA_SPLIT,  /* goes to out and to value, on nothing */
    SWX_NFA_ASSERT, /* value: swx_assertion; goes to out, on nothing, where it holds */
    SWX_NFA_MATCH   /* value: the pattern's index */
} swx_nfa_kind;

typedef struct {
    uint8_t kind; /* swx_nfa_kind */
    uint32_t value;
    uint32_t out;
} swx_nfa_state;

typedef struct {
    swx_nfa_state *states;
    size_t count, capacity;
    uint32_t *starts; /* one per pattern */
    bool *empty;      /* per pattern: matches the empty text */
    size_t patterns;
} swx_nfa;

/* Compiles roots[0..count).  SWX_OK, SWX_ENOMEM, SWX_ELIMIT (too many states), SWX_EUNSUPPORTED (an anchor or boundary
 * that cannot be exact in a stream); *bad is the pattern at fault.  swx_nfa_free is legal after any result. */
swx_status swx_nfa_build(swx_nfa *nfa, const swx_regex *regex, const uint32_t *roots, size_t count, size_t *bad,
                         swx_error *err);
void swx_nfa_free(swx_nfa *nfa);

#endif
