/* swx_dfa.h: the lazy DFA over characters, which also knows where a match began.
 *
 * A state of the DFA is what is alive in the NFA, grouped by where it began, oldest first:
 *
 *      registers   [0] = 17     [1] = 40
 *      state        {5, 9}       {3}          + {starts of all patterns}, which begin here and are implied
 *
 * An NFA state stays in its oldest group only, so a hit taken from the first group that has one is the one that starts
 * first.  A transition says which old group becomes which new one; where nothing moves it is a plain table entry, and
 * the loop over such entries is all that happens for most bytes.
 *
 * States are made when first needed and kept in a bounded cache.  When it is full it is emptied, and the search goes on
 * from the state at hand: time stays linear in the bytes, at worst with the size of the NFA as the factor.  Making states
 * is work, counted in states of the NFA that are looked at; a stream that needs too much of it ends with SWX_ELIMIT.
 */
#ifndef SWX_DFA_H
#define SWX_DFA_H

#include "swx_alphabet.h"
#include "swx_skip.h"

/* How much work a stream may need, at 20 ns each: to make the states of a large list of patterns, and for each byte.  Both together
 * keep the reactor's thread, in which all sessions are read, a third of a second at most before it looks at the others. */
#define SWX_DFA_WORK 4000000u
#define SWX_DFA_WORK_PER_BYTE 40u

#define SWX_DFA_CACHE (4u << 20) /* bytes; one state more may be over it */

typedef struct swx_dfa swx_dfa;

/* nfa, alphabet and skip are borrowed.  SWX_OK or SWX_ENOMEM. */
swx_status swx_dfa_new(swx_dfa **out, const swx_nfa *nfa, const swx_alphabet *alphabet, const swx_skip *skip, size_t cache);
void swx_dfa_free(swx_dfa *dfa);

/* A new stream at offset 0. */
void swx_dfa_reset(swx_dfa *dfa);

/* As swx_match_feed. */
swx_status swx_dfa_feed(swx_dfa *dfa, const uint8_t *bytes, size_t size, size_t *consumed, swx_hit *hit);

#endif
