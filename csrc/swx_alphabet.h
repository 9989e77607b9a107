/* swx_alphabet.h: the letters of an automaton over characters.
 *
 * All code points that no class of the patterns tells apart are one letter, so that a row of the DFA has a few dozen
 * columns and not a million.  Invalid bytes are one letter, that of the surrogates.
 *
 *      bounds   0 .... 48 .. 58 ...... 0xD800 ..... 0xE000 .....
 *      letters  0      1     0         2            0            (letter of the code points from bounds[i] on)
 */
#ifndef SWX_ALPHABET_H
#define SWX_ALPHABET_H

#include "swx_nfa.h"

#define SWX_ALPHABET_MAX 4096u

typedef struct {
    uint32_t *bounds; /* bounds[0] is 0, ascending */
    uint16_t *letters;
    size_t bound_count;
    uint16_t ascii[128];
    uint16_t count;   /* letters are 0..count-1 */
    uint16_t invalid; /* the letter of invalid bytes */
    uint16_t newline;
    uint64_t *members;     /* per class of the regex a bit set of letters */
    uint64_t *word, *ascii_word; /* bit sets of the letters in \w; NULL where no boundary needs them; borrowed */
    size_t words_per_set;
} swx_alphabet;

/* SWX_OK, SWX_ENOMEM, SWX_ELIMIT.  swx_alphabet_free is legal after any result. */
swx_status swx_alphabet_build(swx_alphabet *alphabet, const swx_regex *regex, const swx_nfa *nfa, swx_error *err);
void swx_alphabet_free(swx_alphabet *alphabet);

/* The index in bounds of the range that holds a code point. */
size_t swx_alphabet_find(const swx_alphabet *alphabet, uint32_t code_point);

static inline bool swx_letter_in(const uint64_t *set, uint32_t letter) { return set[letter >> 6] >> (letter & 63) & 1; }

static inline const uint64_t *swx_alphabet_class(const swx_alphabet *alphabet, uint32_t class)
{
    return alphabet->members + class * alphabet->words_per_set;
}

#endif
