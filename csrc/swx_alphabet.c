/* Partition refinement: cut the code points at every border of every class, then split letters class by class. */
#include "swx_alphabet.h"

#include <string.h>

#include "swx_alloc.h"

#define MAX_SET_BYTES (16u << 20)

static int ascending(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static void add_bounds(swx_alphabet *alphabet, uint32_t low, uint32_t high)
{
    alphabet->bounds[alphabet->bound_count++] = low;
    if (high < SWX_LAST_CODE_POINT) {
        alphabet->bounds[alphabet->bound_count++] = high + 1;
    }
}

static swx_status collect_bounds(swx_alphabet *alphabet, const swx_regex *regex, const swx_nfa *nfa)
{
    size_t most = 2 * (regex->ranges.count + nfa->count) + 8, kept = 1;
    alphabet->bounds = swx_malloc(most * sizeof(*alphabet->bounds));
    if (!alphabet->bounds) {
        return SWX_ENOMEM;
    }
    alphabet->bounds[alphabet->bound_count++] = 0;
    add_bounds(alphabet, '\n', '\n');
    add_bounds(alphabet, 0xD800, 0xDFFF);
    for (size_t i = 0; i < regex->ranges.count; i++) {
        add_bounds(alphabet, regex->ranges.ranges[i].low, regex->ranges.ranges[i].high);
    }
    for (size_t i = 0; i < nfa->count; i++) {
        if (nfa->states[i].kind == SWX_NFA_CHAR) {
            add_bounds(alphabet, nfa->states[i].value, nfa->states[i].value);
        }
    }
    qsort(alphabet->bounds, alphabet->bound_count, sizeof(*alphabet->bounds), ascending);
    for (size_t i = 1; i < alphabet->bound_count; i++) {
        if (alphabet->bounds[i] != alphabet->bounds[kept - 1]) {
            alphabet->bounds[kept++] = alphabet->bounds[i];
        }
    }
    alphabet->bound_count = kept;
    return SWX_OK;
}

size_t swx_alphabet_find(const swx_alphabet *alphabet, uint32_t code_point)
{
    size_t low = 0, high = alphabet->bound_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (alphabet->bounds[middle] <= code_point) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

typedef struct {
    uint32_t *sizes;  /* ranges per letter */
    uint32_t *inside; /* of these, inside the class at hand */
    uint32_t *moved;  /* the letter that they become, + 1 */
} refinement;

/* Calls for every range of the alphabet inside the ranges: `pass` 0 counts, 1 moves. */
static bool refine_pass(swx_alphabet *alphabet, refinement *r, const swx_range *ranges, size_t count, int pass)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t at = swx_alphabet_find(alphabet, ranges[i].low);
             at < alphabet->bound_count && alphabet->bounds[at] <= ranges[i].high; at++) {
            uint16_t letter = alphabet->letters[at];
            if (pass == 0) {
                r->inside[letter]++;
            } else if (r->moved[letter] || r->inside[letter] < r->sizes[letter]) {
                if (!r->moved[letter]) {
                    if (alphabet->count == SWX_ALPHABET_MAX) {
                        return false;
                    }
                    r->moved[letter] = alphabet->count + 1u;
                    alphabet->count++;
                }
                uint16_t target = (uint16_t)(r->moved[letter] - 1);
                alphabet->letters[at] = target;
                r->sizes[target]++;
            }
        }
    }
    return true;
}

/* Splits every letter that lies partly inside of the ranges. */
static bool refine(swx_alphabet *alphabet, refinement *r, const swx_range *ranges, size_t count)
{
    uint16_t before = alphabet->count;
    refine_pass(alphabet, r, ranges, count, 0);
    bool good = refine_pass(alphabet, r, ranges, count, 1);
    for (uint16_t letter = 0; letter < before; letter++) {
        if (r->moved[letter]) {
            r->sizes[letter] -= r->inside[letter];
        }
        r->moved[letter] = r->inside[letter] = 0;
    }
    return good;
}

static bool refine_all(swx_alphabet *alphabet, refinement *r, const swx_regex *regex, const swx_nfa *nfa)
{
    static const swx_range fixed[] = { { '\n', '\n' }, { 0xD800, 0xDFFF } };
    bool good = refine(alphabet, r, &fixed[0], 1) && refine(alphabet, r, &fixed[1], 1);
    for (size_t i = 0; i < regex->class_count && good; i++) {
        good = refine(alphabet, r, regex->ranges.ranges + regex->classes[i].first, regex->classes[i].count);
    }
    for (size_t i = 0; i < nfa->count && good; i++) {
        if (nfa->states[i].kind == SWX_NFA_CHAR) {
            uint32_t c = nfa->states[i].value;
            size_t at = swx_alphabet_find(alphabet, c);
            swx_range one = { c, c };
            good = r->sizes[alphabet->letters[at]] == 1 || refine(alphabet, r, &one, 1);
        }
    }
    return good;
}

static swx_status make_letters(swx_alphabet *alphabet, const swx_regex *regex, const swx_nfa *nfa)
{
    refinement r = { 0 };
    swx_status status = SWX_ENOMEM;
    alphabet->letters = swx_calloc(alphabet->bound_count, sizeof(*alphabet->letters));
    r.sizes = swx_calloc(3 * (size_t)SWX_ALPHABET_MAX, sizeof(*r.sizes));
    if (!alphabet->letters || !r.sizes) {
        goto done;
    }
    r.inside = r.sizes + SWX_ALPHABET_MAX;
    r.moved = r.inside + SWX_ALPHABET_MAX;
    r.sizes[0] = (uint32_t)alphabet->bound_count;
    alphabet->count = 1;
    status = refine_all(alphabet, &r, regex, nfa) ? SWX_OK : SWX_ELIMIT;
done:
    swx_free(r.sizes);
    return status;
}

static swx_status make_sets(swx_alphabet *alphabet, const swx_regex *regex)
{
    alphabet->words_per_set = (alphabet->count + 63u) / 64;
    size_t words = regex->class_count * alphabet->words_per_set;
    if (words > MAX_SET_BYTES / 8) {
        return SWX_ELIMIT;
    }
    alphabet->members = swx_calloc(words, sizeof(*alphabet->members));
    if (!alphabet->members) {
        return SWX_ENOMEM;
    }
    for (size_t i = 0; i < regex->class_count; i++) {
        uint64_t *set = alphabet->members + i * alphabet->words_per_set;
        const swx_range *ranges = regex->ranges.ranges + regex->classes[i].first;
        for (size_t k = 0; k < regex->classes[i].count; k++) {
            for (size_t at = swx_alphabet_find(alphabet, ranges[k].low);
                 at < alphabet->bound_count && alphabet->bounds[at] <= ranges[k].high; at++) {
                set[alphabet->letters[at] >> 6] |= UINT64_C(1) << (alphabet->letters[at] & 63);
            }
        }
    }
    return SWX_OK;
}

swx_status swx_alphabet_build(swx_alphabet *alphabet, const swx_regex *regex, const swx_nfa *nfa, swx_error *err)
{
    *alphabet = (swx_alphabet){ 0 };
    swx_status status = collect_bounds(alphabet, regex, nfa);
    if (status == SWX_OK) {
        status = make_letters(alphabet, regex, nfa);
    }
    if (status == SWX_OK) {
        status = make_sets(alphabet, regex);
    }
    if (status != SWX_OK) {
        return swx_fail(err, status, status == SWX_ENOMEM ? "out of memory" : "the patterns have too many classes");
    }
    for (uint32_t c = 0; c < 128; c++) {
        alphabet->ascii[c] = alphabet->letters[swx_alphabet_find(alphabet, c)];
    }
    alphabet->newline = alphabet->ascii['\n'];
    alphabet->invalid = alphabet->letters[swx_alphabet_find(alphabet, 0xDC80)];
    size_t width = alphabet->words_per_set;
    alphabet->word = regex->unicode_word ? alphabet->members + (regex->unicode_word - 1) * width : NULL;
    alphabet->ascii_word = regex->ascii_word ? alphabet->members + (regex->ascii_word - 1) * width : NULL;
    return SWX_OK;
}

void swx_alphabet_free(swx_alphabet *alphabet)
{
    swx_free(alphabet->bounds);
    swx_free(alphabet->letters);
    swx_free(alphabet->members);
    *alphabet = (swx_alphabet){ 0 };
}
