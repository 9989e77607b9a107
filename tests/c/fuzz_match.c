/* A program and a text from the input: nothing breaks, and the answer is the same however the text is cut and however
 * small the cache is.
 *
 * Input: byte 0: how the text is cut; then states of three bytes up to one of 0xFF, then the text. */
#include "programs.h"

static builder read_program(const uint8_t *bytes, size_t size, size_t *used)
{
    static const char *const members[] = { "a", "b", "ab", "x\n", "_-" };
    builder b = new_builder();
    uint32_t first_set = b.counts.sets;
    size_t states = 0, at = 0;
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        set(&b, members[i]);
    }
    set_without(&b, "a");
    while (states < 60 && states * 3 + 3 <= size && bytes[states * 3] != 0xFF) {
        states++;
    }
    for (; at < states; at++) {
        const uint8_t *each = bytes + 3 * at;
        swx_nfa_kind kind = each[0] % 4;
        uint32_t value = kind == SWX_READ     ? first_set + each[1] % 6
                         : kind == SWX_SPLIT  ? each[1] % (uint32_t)states
                         : kind == SWX_ASSERT ? each[1] % (SWX_AT_ASCII_NO_BOUNDARY + 1u)
                                              : each[1] % 3;
        state(&b, kind, value, each[2] % (uint32_t)states);
    }
    *used = 3 * states + (3 * states < size);
    for (uint32_t i = 0; i < 3 && states; i++) {
        begins(&b, (uint32_t)(i * states / 3));
    }
    return b;
}

static swx_match *matcher_of(const builder *b)
{
    size_t count;
    swx_match *match;
    uint32_t *program = program_of(b, &count);
    memset(program + count - FIRST_WORDS, 0xFF, FIRST_WORDS * sizeof(*program));
    CHECK(swx_match_new(&match, program, count) == SWX_OK);
    free(program);
    return match;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    size_t used = 0;
    if (size < 5) {
        return 0;
    }
    builder b = read_program(bytes + 1, size - 1, &used);
    const uint8_t *text = bytes + 1 + used;
    size_t left = size - 1 - used;
    if (!b.counts.patterns) {
        return 0;
    }
    swx_match *whole = matcher_of(&b), *cut = matcher_of(&b);
    swx_match_limit_cache(cut, 1);
    for (size_t at = 0, cut_at = 0; at < left;) {
        swx_hit expected, hit;
        size_t consumed, piece, read = 0;
        swx_status status = swx_match_feed(whole, text + at, left - at, &consumed, &expected), other = SWX_MORE;
        CHECK(consumed <= left - at);
        for (; cut_at < left && other == SWX_MORE; cut_at += read) {
            piece = 1 + (bytes[0] + cut_at * 7) % 5;
            piece = piece < left - cut_at ? piece : left - cut_at;
            uint8_t *copy = malloc(piece); /* so that the sanitizer sees a byte too far */
            memcpy(copy, text + cut_at, piece);
            other = swx_match_feed(cut, copy, piece, &read, &hit);
            free(copy);
        }
        at += consumed;
        CHECK(status == other && at == cut_at);
        CHECK(status != SWX_OK ||
              (hit.index == expected.index && hit.start == expected.start && hit.end == expected.end));
        if (status == SWX_OK && !consumed && hit.start == hit.end) {
            break;
        }
    }
    swx_match_free(whole);
    swx_match_free(cut);
    return 0;
}
