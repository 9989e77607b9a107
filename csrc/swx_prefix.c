/* Level by level: the states that read byte 0, 1, 2, ... of a match.  Assertions are taken to hold, but for the stream's
 * beginning, so the sets may be too large and never too small. */
#include "swx_prefix.h"

#include <string.h>

#include "swx_alloc.h"

typedef struct {
    const swx_nfa *nfa;
    const swx_regex *regex;
    uint8_t *seen;   /* bit `level` per state */
    uint32_t *stack; /* room for every state once */
    swx_byte_set sets[SWX_SKIP_DEPTH];
} prefix;

static void visit(prefix *p, uint32_t start, unsigned level);

/* Everything may follow from `level` on. */
static void allow_all(prefix *p, unsigned level)
{
    for (; level < SWX_SKIP_DEPTH; level++) {
        memset(&p->sets[level], 0xFF, sizeof(p->sets[level]));
    }
}

static void add_bytes(prefix *p, const uint8_t *bytes, size_t size, unsigned level, uint32_t out)
{
    for (size_t i = 0; i < size && level < SWX_SKIP_DEPTH; i++, level++) {
        swx_byte_set_add(&p->sets[level], bytes[i]);
    }
    if (level < SWX_SKIP_DEPTH) {
        visit(p, out, level);
    }
}

static void add_class(prefix *p, uint32_t class, unsigned level, uint32_t out)
{
    swx_class own = p->regex->classes[class];
    bool ascii = false;
    for (size_t i = 0; i < own.count; i++) {
        swx_range range = p->regex->ranges.ranges[own.first + i];
        uint8_t low[4], high[4];
        if (range.low < 0x80) {
            ascii = true;
            swx_byte_set_add_range(&p->sets[level], range.low, range.high < 0x80 ? range.high : 0x7F);
        }
        if (range.high >= 0x80) {
            bool invalid = range.low <= 0xDC80 && range.high >= 0xDC80;
            swx_utf8_encode(range.low < 0x80 ? 0x80 : range.low, low);
            swx_utf8_encode(range.high, high);
            swx_byte_set_add_range(&p->sets[level], invalid ? 0x80 : low[0], invalid ? 0xFF : high[0]);
            allow_all(p, level + 1);
        }
    }
    if (ascii && level + 1 < SWX_SKIP_DEPTH) {
        visit(p, out, level + 1);
    }
}

/* Walks what is reachable from start without reading.  Recursion is at most SWX_SKIP_DEPTH deep, and a state enters the
 * shared stack at most once per level. */
static void visit(prefix *p, uint32_t start, unsigned level)
{
    uint32_t *stack = p->stack + (size_t)level * 2 * p->nfa->count;
    size_t depth = 0;
    stack[depth++] = start;
    while (depth) {
        uint32_t index = stack[--depth];
        const swx_nfa_state *state = &p->nfa->states[index];
        if (p->seen[index] >> level & 1) {
            continue;
        }
        p->seen[index] |= (uint8_t)(1u << level);
        uint8_t bytes[4];
        switch (state->kind) {
        case SWX_NFA_CHAR: add_bytes(p, bytes, swx_utf8_encode(state->value, bytes), level, state->out); break;
        case SWX_NFA_CLASS: add_class(p, state->value, level, state->out); break;
        case SWX_NFA_MATCH: allow_all(p, level); break;
        case SWX_NFA_SPLIT:
            stack[depth++] = state->value;
            stack[depth++] = state->out;
            break;
        default:
            if (state->value != SWX_AT_BEGIN) {
                stack[depth++] = state->out;
            }
        }
    }
}

swx_status swx_prefix_add(swx_skip *skip, const swx_nfa *nfa, const swx_regex *regex)
{
    prefix p = { .nfa = nfa, .regex = regex };
    swx_status status = SWX_ENOMEM;
    p.seen = swx_calloc(nfa->count, 1);
    p.stack = swx_malloc((size_t)SWX_SKIP_DEPTH * 2 * nfa->count * sizeof(*p.stack));
    if (p.seen && p.stack) {
        for (size_t i = 0; i < nfa->patterns; i++) {
            memset(p.sets, 0, sizeof(p.sets));
            visit(&p, nfa->starts[i], 0);
            swx_skip_add(skip, p.sets);
        }
        status = SWX_OK;
    }
    swx_free(p.seen);
    swx_free(p.stack);
    return status;
}
