/* Built from the end: each construct is compiled in front of the state that follows it, so nothing is patched but the
 * back edge of a loop. */
#include "swx_nfa.h"

#include <string.h>

#include "swx_alloc.h"

#define NONE UINT32_MAX

typedef struct {
    swx_nfa *nfa;
    const swx_regex *regex;
    swx_error *err;
    swx_status status;
} builder;

static uint32_t emit(builder *b, uint32_t node, uint32_t follow);

static uint32_t refuse(builder *b, swx_status status, const char *text)
{
    if (b->status == SWX_OK) {
        b->status = swx_fail(b->err, status, text);
    }
    return NONE;
}

static uint32_t add_state(builder *b, swx_nfa_kind kind, uint32_t value, uint32_t out)
{
    swx_nfa *nfa = b->nfa;
    if (nfa->count == SWX_NFA_MAX_STATES) {
        return refuse(b, SWX_ELIMIT, "the patterns are too large (repeats multiply)");
    }
    if (nfa->count == nfa->capacity) {
        size_t capacity = nfa->capacity ? nfa->capacity * 2 : 64;
        swx_nfa_state *states = swx_realloc(nfa->states, capacity * sizeof(*states));
        if (!states) {
            return refuse(b, SWX_ENOMEM, "out of memory");
        }
        nfa->states = states;
        nfa->capacity = capacity;
    }
    nfa->states[nfa->count] = (swx_nfa_state){ (uint8_t)kind, value, out };
    return (uint32_t)nfa->count++;
}

static uint32_t emit_sequence(builder *b, uint32_t last, uint32_t follow)
{
    for (uint32_t node = last; node && follow != NONE; node = b->regex->nodes[node].before) {
        follow = emit(b, node, follow);
    }
    return follow;
}

static uint32_t emit_alternatives(builder *b, uint32_t last, uint32_t follow)
{
    uint32_t entry = NONE;
    for (uint32_t node = last; node; node = b->regex->nodes[node].before) {
        uint32_t branch = emit(b, node, follow);
        if (branch == NONE) {
            return NONE;
        }
        entry = entry == NONE ? branch : add_state(b, SWX_NFA_SPLIT, entry, branch);
        if (entry == NONE) {
            return NONE;
        }
    }
    return entry;
}

/* x* in front of follow; *body is the entry of x inside the loop. */
static uint32_t emit_loop(builder *b, uint32_t child, uint32_t follow, uint32_t *body)
{
    uint32_t loop = add_state(b, SWX_NFA_SPLIT, follow, follow);
    if (loop == NONE) {
        return NONE;
    }
    *body = emit(b, child, loop);
    if (*body == NONE) {
        return NONE;
    }
    b->nfa->states[loop].out = *body;
    return loop;
}

static uint32_t emit_repeat(builder *b, const swx_node *node, uint32_t follow)
{
    uint32_t entry = follow, min = node->min;
    if (node->max == SWX_UNLIMITED) {
        uint32_t body = NONE;
        entry = emit_loop(b, node->child, follow, &body);
        if (min > 0 && entry != NONE) {
            entry = body; /* x+ is x* entered at x */
            min--;
        }
    } else {
        for (uint32_t i = node->max - min; i > 0 && entry != NONE; i--) {
            uint32_t body = emit(b, node->child, entry);
            if (body == entry) {
                break; /* x is empty: so is any number of it */
            }
            entry = body == NONE ? NONE : add_state(b, SWX_NFA_SPLIT, follow, body);
        }
    }
    for (; min > 0 && entry != NONE; min--) {
        uint32_t body = emit(b, node->child, entry);
        if (body == entry) {
            break;
        }
        entry = body;
    }
    return entry;
}

static uint32_t emit(builder *b, uint32_t index, uint32_t follow)
{
    const swx_node *node = &b->regex->nodes[index];
    switch (node->kind) {
    case SWX_NODE_CHAR: return add_state(b, SWX_NFA_CHAR, node->value, follow);
    case SWX_NODE_CLASS: return add_state(b, SWX_NFA_CLASS, node->value, follow);
    case SWX_NODE_ASSERT: return add_state(b, SWX_NFA_ASSERT, node->value, follow);
    case SWX_NODE_CAT: return emit_sequence(b, node->child, follow);
    case SWX_NODE_ALT: return emit_alternatives(b, node->child, follow);
    case SWX_NODE_REPEAT: return emit_repeat(b, node, follow);
    case SWX_NODE_EMPTY:
    default: return follow;
    }
}

/* ---- what cannot be exact in a stream ----
 *
 * A hit ends where the text that has arrived ends.  An assertion before the end of a pattern would have to be decided
 * by characters after the hit, unless "the text ends here" decides it once and for all:
 *   \b: yes when the character before is a word's (it holds), \B: when it is none;
 *   $ without (?m) before a newline that ends the text: only where a newline can follow it in the pattern. */

enum { TO_MATCH = 1, TO_BOUNDARY = 2, TO_NO_BOUNDARY = 4, TO_ASCII_BOUNDARY = 8, TO_ASCII_NO_BOUNDARY = 16, TO_NEWLINE = 32 };

static bool class_has(const swx_regex *regex, uint32_t class, uint32_t code_point)
{
    swx_class ranges = regex->classes[class];
    return swx_ranges_have(regex->ranges.ranges + ranges.first, ranges.count, code_point);
}

static bool eats_newline(const swx_regex *regex, const swx_nfa_state *state)
{
    return state->kind == SWX_NFA_CHAR ? state->value == '\n' : class_has(regex, state->value, '\n');
}

static unsigned boundary_bit(uint32_t assertion)
{
    switch (assertion) {
    case SWX_AT_BOUNDARY: return TO_BOUNDARY;
    case SWX_AT_NO_BOUNDARY: return TO_NO_BOUNDARY;
    case SWX_AT_ASCII_BOUNDARY: return TO_ASCII_BOUNDARY;
    case SWX_AT_ASCII_NO_BOUNDARY: return TO_ASCII_NO_BOUNDARY;
    default: return 0;
    }
}

/* What is reachable from a state without reading, given what is known of the states after it. */
static unsigned reach_of(const builder *b, const uint8_t *reach, uint32_t index)
{
    const swx_nfa_state *state = &b->nfa->states[index];
    switch (state->kind) {
    case SWX_NFA_CHAR:
    case SWX_NFA_CLASS: return eats_newline(b->regex, state) ? TO_NEWLINE : 0;
    case SWX_NFA_MATCH: return TO_MATCH;
    case SWX_NFA_SPLIT: return reach[state->out] | reach[state->value];
    default:
        return reach[state->out] | (reach[state->out] & TO_MATCH ? boundary_bit(state->value) : 0);
    }
}

/* Whether ranges a lie inside (or, when !inside, outside) of ranges b. */
static bool ranges_are(const swx_range *a, size_t a_count, const swx_range *b, size_t b_count, bool inside)
{
    size_t at = 0;
    for (size_t i = 0; i < a_count; i++) {
        uint32_t low = a[i].low;
        for (; at < b_count && b[at].high < low; at++) {
        }
        for (; inside && at < b_count && b[at].low <= low && b[at].high < a[i].high; at++) {
            low = b[at].high + 1; /* ranges that touch */
        }
        bool good = inside ? at < b_count && b[at].low <= low && b[at].high >= a[i].high
                           : at == b_count || b[at].low > a[i].high;
        if (!good) {
            return false;
        }
    }
    return true;
}

static bool all_word(const swx_regex *regex, const swx_nfa_state *state, uint32_t word, bool inside)
{
    swx_class words = regex->classes[word - 1];
    swx_range one = { state->value, state->value };
    const swx_range *own = &one;
    size_t count = 1;
    if (state->kind == SWX_NFA_CLASS) {
        own = regex->ranges.ranges + regex->classes[state->value].first;
        count = regex->classes[state->value].count;
    }
    return ranges_are(own, count, regex->ranges.ranges + words.first, words.count, inside);
}

/* Whether a character that `state` reads may stand before the final boundaries in `reach`. */
static bool decides(const swx_regex *regex, const swx_nfa_state *state, unsigned reach)
{
    return (!(reach & TO_BOUNDARY) || all_word(regex, state, regex->unicode_word, true)) &&
           (!(reach & TO_NO_BOUNDARY) || all_word(regex, state, regex->unicode_word, false)) &&
           (!(reach & TO_ASCII_BOUNDARY) || all_word(regex, state, regex->ascii_word, true)) &&
           (!(reach & TO_ASCII_NO_BOUNDARY) || all_word(regex, state, regex->ascii_word, false));
}

static bool assertions_are_exact(builder *b, const uint8_t *reach, uint32_t first, uint32_t start)
{
    const unsigned boundaries = TO_BOUNDARY | TO_NO_BOUNDARY | TO_ASCII_BOUNDARY | TO_ASCII_NO_BOUNDARY;
    if (reach[start] & boundaries) {
        return false;
    }
    for (uint32_t i = first; i < b->nfa->count; i++) {
        const swx_nfa_state *state = &b->nfa->states[i];
        if (state->kind <= SWX_NFA_CLASS && (reach[state->out] & boundaries) &&
            !decides(b->regex, state, reach[state->out])) {
            return false;
        }
        if (state->kind == SWX_NFA_ASSERT && state->value == SWX_AT_LAST_LINE && (reach[state->out] & TO_NEWLINE)) {
            return false;
        }
    }
    return true;
}

static swx_status check_assertions(builder *b, uint32_t first, uint32_t start)
{
    bool any = false, changed = true;
    for (uint32_t i = first; i < b->nfa->count; i++) {
        any |= b->nfa->states[i].kind == SWX_NFA_ASSERT && b->nfa->states[i].value >= SWX_AT_LAST_LINE;
    }
    if (!any) {
        return SWX_OK;
    }
    uint8_t *reach = swx_calloc(b->nfa->count, 1);
    if (!reach) {
        return swx_fail(b->err, SWX_ENOMEM, "out of memory");
    }
    while (changed) {
        changed = false;
        for (uint32_t i = first; i < b->nfa->count; i++) {
            unsigned now = reach_of(b, reach, i);
            changed |= now != reach[i];
            reach[i] = (uint8_t)now;
        }
    }
    bool exact = assertions_are_exact(b, reach, first, start);
    swx_free(reach);
    return exact ? SWX_OK : swx_fail(b->err, SWX_EUNSUPPORTED, "a $, \\b or \\B that later text would have to decide: write what comes behind it");
}

/* ---- the empty text ---- */

static bool holds_in_empty_text(uint32_t assertion)
{
    return assertion <= SWX_AT_LINE_END;
}

/* Whether the pattern matches the empty text: a walk over the states that need no reading. */
static swx_status find_empty(builder *b, uint32_t first, uint32_t start, bool *empty)
{
    size_t count = b->nfa->count - first, depth = 0;
    uint32_t *stack = swx_malloc(count * sizeof(*stack));
    bool *seen = swx_calloc(count, sizeof(*seen));
    if (stack && seen) {
        stack[depth++] = start;
        seen[start - first] = true;
    }
    while (depth) {
        const swx_nfa_state *state = &b->nfa->states[stack[--depth]];
        uint32_t next[2] = { state->out, state->kind == SWX_NFA_SPLIT ? state->value : state->out };
        *empty |= state->kind == SWX_NFA_MATCH;
        if (state->kind == SWX_NFA_SPLIT || (state->kind == SWX_NFA_ASSERT && holds_in_empty_text(state->value))) {
            for (int i = 0; i < 2; i++) {
                if (!seen[next[i] - first]) {
                    seen[next[i] - first] = true;
                    stack[depth++] = next[i];
                }
            }
        }
    }
    bool good = stack && seen;
    swx_free(stack);
    swx_free(seen);
    return good ? SWX_OK : swx_fail(b->err, SWX_ENOMEM, "out of memory");
}

static swx_status build_pattern(builder *b, uint32_t root, size_t index)
{
    uint32_t first = (uint32_t)b->nfa->count;
    uint32_t match = add_state(b, SWX_NFA_MATCH, (uint32_t)index, 0);
    uint32_t start = match == NONE ? NONE : emit(b, root, match);
    if (start == NONE) {
        return b->status;
    }
    b->nfa->starts[index] = start;
    swx_status status = check_assertions(b, first, start);
    return status == SWX_OK ? find_empty(b, first, start, &b->nfa->empty[index]) : status;
}

swx_status swx_nfa_build(swx_nfa *nfa, const swx_regex *regex, const uint32_t *roots, size_t count, size_t *bad,
                         swx_error *err)
{
    builder b = { nfa, regex, err, SWX_OK };
    swx_status status = SWX_OK;
    *nfa = (swx_nfa){ .patterns = count };
    *bad = 0;
    nfa->starts = swx_calloc(count, sizeof(*nfa->starts));
    nfa->empty = swx_calloc(count, sizeof(*nfa->empty));
    if (!nfa->starts || !nfa->empty) {
        return swx_fail(err, SWX_ENOMEM, "out of memory");
    }
    for (size_t i = 0; i < count && status == SWX_OK; i++) {
        *bad = i;
        status = build_pattern(&b, roots[i], i);
    }
    return status;
}

void swx_nfa_free(swx_nfa *nfa)
{
    swx_free(nfa->states);
    swx_free(nfa->starts);
    swx_free(nfa->empty);
    *nfa = (swx_nfa){ 0 };
}
