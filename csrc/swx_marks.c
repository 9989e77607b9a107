#include "swx_marks.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    ESC = 0x1b,
    BEL = 0x07,
    DIGITS = SWX_NONCE_DIGITS + SWX_START_DIGITS,
    COMMON = 2 + 5 /* ESC ] 7733; */
};

swx_status swx_marks_init(swx_marks *marks, bool elsewhere, swx_error *err)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUV";
    uint8_t drawn[DIGITS];
    if (getentropy(drawn, sizeof(drawn)) != 0) {
        return swx_fail_sys(err, "getentropy", errno);
    }
    /* The first digits of the two numbers differ, so that a mark's first one tells which it is. */
    drawn[SWX_NONCE_DIGITS] ^= (drawn[SWX_NONCE_DIGITS] ^ drawn[0]) & 31 ? 0 : 16;
    for (unsigned i = 0; i < DIGITS; i++) {
        char *number = i < SWX_NONCE_DIGITS ? marks->nonce + i : marks->start + (i - SWX_NONCE_DIGITS);
        *number = digits[drawn[i] & 31];
    }
    marks->nonce[SWX_NONCE_DIGITS] = marks->start[SWX_START_DIGITS] = 0;
    char head[SWX_MARKS_HEAD + 1];
    snprintf(head, sizeof(head), "\033]7733;%s;", marks->nonce);
    memcpy(marks->head, head, SWX_MARKS_HEAD);
    memcpy(marks->start_head, head, COMMON);
    memcpy(marks->start_head + COMMON, marks->start, SWX_START_DIGITS);
    snprintf(marks->ps0, sizeof(marks->ps0), "\\e]7733;%s\\a", marks->start);
    /* Its length tells when something was put before or behind this text.  A length of PS0 would cost the shell half as
     * much again as PS0 itself, which is what else makes a mark ours: its digits are not those of the nonce. */
    snprintf(marks->ps1, sizeof(marks->ps1), "\\e]7733;%s;%d%s;$?;\\#;\\j;${#PS1};${PS0-}\\a", marks->nonce,
             SWX_MARK_PROMPT, elsewhere ? "\\l" : "");
    marks->held_size = marks->released = 0;
    return SWX_OK;
}

/* The part behind the head, NUL-terminated at `size`, without BEL. */
static bool parse_mark(const swx_marks *marks, const char *text, size_t size, swx_mark *mark)
{
    static const unsigned counts[] = {
        [SWX_MARK_PROMPT] = 4, [SWX_MARK_GUARD] = 1, [SWX_MARK_REPORT] = 1, [SWX_MARK_VALUE] = 0, [SWX_MARK_END] = 1
    };
    const char *end = text + size;
    char *behind;
    const unsigned kind = (unsigned)(*text++ - '0');
    uint64_t fields[4] = { 0 };
    if (kind < SWX_MARK_PROMPT || kind > SWX_MARK_END) {
        return false;
    }
    const bool named = strncmp(text, "tty;", 4) != 0; /* what `\l` gives for an input that is no terminal */
    text += kind == SWX_MARK_PROMPT ? strcspn(text, ";") : 0;
    const bool coded = kind <= SWX_MARK_REPORT, expanded = !coded || strncmp(text, ";$?", 3) != 0;
    const unsigned count = counts[kind] - (kind == SWX_MARK_PROMPT && !expanded);
    for (unsigned i = 0; i < count; i++) {
        if (*text++ != ';') {
            return false;
        }
        if (i == 0 && !expanded) {
            text += 2;
        } else if (isdigit((uint8_t)*text)) {
            fields[i] = strtoull(text, &behind, 10);
            text = behind;
        } else {
            return false;
        }
    }
    if (coded && fields[0] > 255) {
        return false;
    }
    *mark = (swx_mark){ .kind = (swx_mark_kind)kind,
                        .code = coded && expanded ? (int)fields[0] : -1,
                        .number = fields[1],
                        .jobs = (uint32_t)fields[2],
                        .input_named = named,
                        .ps1_kept = fields[3] == strlen(marks->ps1),
                        .no_stderr = kind == SWX_MARK_END && fields[0] == 0 };
    if (kind == SWX_MARK_PROMPT) {
        size_t kept = strlen(marks->ps0);
        mark->ps0_kept = (size_t)(end - text) == kept + 1 && memcmp(text + 1, marks->ps0, kept) == 0;
        return !expanded || *text == ';'; /* without expansion the rest says nothing */
    }
    for (; kind == SWX_MARK_END && isalpha((uint8_t)*text); text++) { /* attributes of PS1 */
        mark->fixed_prompt = mark->fixed_prompt || *text == 'r';
    }
    return text == end;
}

/* How many of these bytes continue what is held as a mark. */
static size_t fitting(const swx_marks *marks, const uint8_t *bytes, size_t size)
{
    size_t at = marks->held_size, count = 0;
    bool is_start = at > COMMON && marks->held[COMMON] == (uint8_t)marks->start[0];
    size_t whole = at < COMMON           ? COMMON
                   : is_start            ? SWX_START_HEAD
                   : at < SWX_MARKS_HEAD ? SWX_MARKS_HEAD
                                         : SWX_MARK_MAX - 1;
    size = size < whole - at ? size : whole - at;
    if (at == COMMON && size) {
        return bytes[0] == marks->head[COMMON] || bytes[0] == (uint8_t)marks->start[0];
    }
    if (at < SWX_MARKS_HEAD) {
        const uint8_t *head = (is_start ? marks->start_head : marks->head) + at;
        while (count < size && bytes[count] == head[count]) {
            count++;
        }
        return count;
    }
    /* The last field of a prompt's mark is a text of the user's when PS0 is.  But an escape may begin the true mark
     * behind half of one. */
    if (at > SWX_MARKS_HEAD && marks->held[SWX_MARKS_HEAD] == '0' + SWX_MARK_PROMPT) {
        while (count < size && bytes[count] != BEL && bytes[count] != ESC) {
            count++;
        }
        return count;
    }
    while (count < size && bytes[count] >= ' ' && bytes[count] < 0x7f) {
        count++;
    }
    return count;
}

static swx_marks_event release(swx_marks *marks, const uint8_t **plain, size_t *plain_size)
{
    *plain = marks->held;
    *plain_size = marks->released = marks->held_size;
    return SWX_MARKS_PLAIN;
}

swx_marks_event swx_marks_next(swx_marks *marks, const uint8_t **bytes, size_t *size, const uint8_t **plain,
                               size_t *plain_size, swx_mark *mark)
{
    if (marks->released) { /* given out by the last call */
        marks->held_size = marks->released = 0;
    }
    while (*size) {
        if (!marks->held_size) {
            const uint8_t *escape = memchr(*bytes, ESC, *size);
            size_t before = escape ? (size_t)(escape - *bytes) : *size;
            if (before) {
                *plain = *bytes;
                *plain_size = before;
                *bytes += before;
                *size -= before;
                return SWX_MARKS_PLAIN;
            }
        }
        size_t count = fitting(marks, *bytes, *size);
        if (count) {
            memcpy(marks->held + marks->held_size, *bytes, count);
            marks->held_size += count;
            *bytes += count;
            *size -= count;
            continue;
        }
        bool is_start = marks->held_size == SWX_START_HEAD && marks->held[COMMON] == (uint8_t)marks->start[0];
        if (**bytes != BEL || (!is_start && marks->held_size <= SWX_MARKS_HEAD)) {
            return release(marks, plain, plain_size); /* the byte itself may begin a mark: it stays in the input */
        }
        ++*bytes;
        --*size;
        if (is_start) {
            marks->held_size = 0;
            *mark = (swx_mark){ .kind = SWX_MARK_START, .code = -1 };
            return SWX_MARKS_MARK;
        }
        char text[SWX_MARK_MAX];
        size_t fields = marks->held_size - SWX_MARKS_HEAD;
        memcpy(text, marks->held + SWX_MARKS_HEAD, fields);
        text[fields] = 0;
        if (parse_mark(marks, text, fields, mark)) {
            marks->held_size = 0;
            return SWX_MARKS_MARK;
        }
        marks->held[marks->held_size++] = BEL; /* our nonce, but not our format: output */
        return release(marks, plain, plain_size);
    }
    return SWX_MARKS_MORE;
}
