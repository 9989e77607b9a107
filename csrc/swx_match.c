/* The front of the matcher: chooses the automaton, and deals with patterns that match the empty text. */
#include "swx_match.h"

#include "swx_alloc.h"
#include "swx_dfa.h"
#include "swx_literal.h"
#include "swx_prefix.h"

struct swx_match {
    size_t count;
    bool *empty;         /* per pattern */
    size_t first_empty;  /* or count */
    uint64_t offset;     /* used while first_empty < count, or there are no patterns */
    swx_literal *literal; /* either this, or the rest */
    swx_dfa *dfa;
    swx_nfa nfa;
    swx_alphabet alphabet;
    swx_skip skip;
};

/* ---- construction ---- */

/* The literals' bytes, one after the other in *storage. */
static swx_status spell_literals(const swx_regex *regex, const uint32_t *roots, size_t count, swx_pattern **spelled,
                                 uint8_t **storage)
{
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        total += swx_regex_literal(regex, roots[i], NULL);
    }
    *spelled = swx_malloc(count * sizeof(**spelled));
    *storage = swx_malloc(total);
    if (!*spelled || !*storage) {
        return SWX_ENOMEM;
    }
    uint8_t *at = *storage;
    for (size_t i = 0; i < count; i++) {
        size_t size = swx_regex_literal(regex, roots[i], at);
        (*spelled)[i] = (swx_pattern){ at, size };
        at += size;
    }
    return SWX_OK;
}

/* SWX_EUNSUPPORTED: these are no literals, or too long ones. */
static swx_status use_literals(swx_match *match, const swx_regex *regex, const uint32_t *roots)
{
    swx_pattern *spelled = NULL;
    uint8_t *storage = NULL;
    for (size_t i = 0; i < match->count; i++) {
        if (!swx_regex_is_literal(regex, roots[i])) {
            return SWX_EUNSUPPORTED;
        }
    }
    swx_status status = spell_literals(regex, roots, match->count, &spelled, &storage);
    if (status == SWX_OK) {
        for (size_t i = match->count; i-- > 0;) {
            match->empty[i] = spelled[i].size == 0;
            match->first_empty = match->empty[i] ? i : match->first_empty;
        }
        if (match->first_empty == match->count) {
            status = swx_literal_new(&match->literal, spelled, match->count);
        }
    }
    swx_free(spelled);
    swx_free(storage);
    return status == SWX_ELIMIT ? SWX_EUNSUPPORTED : status;
}

static swx_status use_dfa(swx_match *match, const swx_regex *regex, const uint32_t *roots, size_t *bad, swx_error *err)
{
    swx_status status = swx_nfa_build(&match->nfa, regex, roots, match->count, bad, err);
    if (status != SWX_OK) {
        return status;
    }
    for (size_t i = match->count; i-- > 0;) {
        match->empty[i] = match->nfa.empty[i];
        match->first_empty = match->empty[i] ? i : match->first_empty;
    }
    if (match->first_empty < match->count) {
        return SWX_OK;
    }
    status = swx_alphabet_build(&match->alphabet, regex, &match->nfa, err);
    if (status != SWX_OK) {
        return status;
    }
    swx_skip_init(&match->skip);
    status = swx_prefix_add(&match->skip, &match->nfa, regex);
    swx_skip_finish(&match->skip);
    if (status == SWX_OK) {
        status = swx_dfa_new(&match->dfa, &match->nfa, &match->alphabet, &match->skip, SWX_DFA_CACHE);
    }
    return status == SWX_OK ? status : swx_fail(err, status, "out of memory");
}

static swx_status parse_all(swx_regex *regex, uint32_t *roots, const swx_pattern *patterns, size_t count, size_t *bad,
                            swx_error *err)
{
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        *bad = i;
        if (patterns[i].size > SWX_MATCH_MAX_BYTES - total) {
            return swx_fail(err, SWX_ELIMIT, "the patterns are too long");
        }
        total += patterns[i].size;
        swx_status status = swx_regex_parse(regex, patterns[i], &roots[i], err);
        if (status != SWX_OK) {
            return status;
        }
    }
    return SWX_OK;
}

static swx_status compile(swx_match *match, const swx_pattern *patterns, const swx_match_tables *tables, size_t *bad,
                          swx_error *err)
{
    swx_regex regex = { .tables = tables };
    uint32_t *roots = swx_calloc(match->count, sizeof(*roots));
    swx_status status;
    if (!roots) {
        return swx_fail(err, SWX_ENOMEM, "out of memory");
    }
    status = parse_all(&regex, roots, patterns, match->count, bad, err);
    if (status != SWX_OK) {
        goto done;
    }
    status = use_literals(match, &regex, roots);
    if (status == SWX_EUNSUPPORTED) {
        status = use_dfa(match, &regex, roots, bad, err);
    } else if (status != SWX_OK) {
        swx_fail(err, status, "out of memory");
    }
done:
    swx_regex_free(&regex);
    swx_free(roots);
    return status;
}

swx_status swx_match_new(swx_match **out, const swx_pattern *patterns, size_t count, const swx_match_tables *tables,
                         size_t *bad_index, swx_error *err)
{
    size_t bad = 0;
    swx_status status = SWX_OK;
    *out = NULL;
    if (count > SWX_MATCH_MAX_PATTERNS) {
        status = swx_fail(err, SWX_ELIMIT, "too many patterns");
        bad = SWX_MATCH_MAX_PATTERNS;
        goto done;
    }
    swx_match *match = swx_calloc(1, sizeof(*match));
    if (!match || !(match->empty = swx_calloc(count, sizeof(*match->empty)))) {
        swx_free(match);
        status = swx_fail(err, SWX_ENOMEM, "out of memory");
        goto done;
    }
    match->count = match->first_empty = count;
    status = count ? compile(match, patterns, tables, &bad, err) : SWX_OK;
    if (status == SWX_OK) {
        *out = match;
    } else {
        swx_match_free(match);
    }
done:
    if (bad_index) {
        *bad_index = bad;
    }
    return status;
}

void swx_match_free(swx_match *match)
{
    if (match) {
        swx_dfa_free(match->dfa);
        swx_literal_free(match->literal);
        swx_alphabet_free(&match->alphabet);
        swx_nfa_free(&match->nfa);
        swx_free(match->empty);
        swx_free(match);
    }
}

bool swx_match_matches_empty(const swx_match *match, size_t index) { return match->empty[index]; }
size_t swx_match_count(const swx_match *match) { return match->count; }

/* ---- the stream ---- */

void swx_match_reset(swx_match *match)
{
    match->offset = 0;
    if (match->literal) {
        swx_literal_reset(match->literal, 0);
    }
    if (match->dfa) {
        swx_dfa_reset(match->dfa);
    }
}

swx_status swx_match_feed(swx_match *match, const uint8_t *bytes, size_t size, size_t *consumed, swx_hit *hit)
{
    if (match->first_empty < match->count) { /* the empty match completes before anything else, every time */
        *hit = (swx_hit){ match->first_empty, match->offset, match->offset };
        *consumed = 0;
        return SWX_OK;
    }
    if (match->literal) {
        return swx_literal_feed(match->literal, bytes, size, consumed, hit);
    }
    if (match->dfa) {
        return swx_dfa_feed(match->dfa, bytes, size, consumed, hit);
    }
    *consumed = size; /* no patterns */
    return SWX_MORE;
}
