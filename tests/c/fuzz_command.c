/* The scanner stays inside of its input and its results agree with each other; delivered lines fit a terminal. */
#include <stdlib.h>
#include <string.h>

#include "swx_command.h"

static void require(int condition)
{
    if (!condition) {
        abort();
    }
}

static const uint8_t *skip(const uint8_t *at, const char *text)
{
    require(memcmp(at, text, strlen(text)) == 0);
    return at + strlen(text);
}

/* Undoes the quoting of SWX_DELIVERY_EVAL by the rules of the header, independently of how it was made. */
static void expect_quoted(swx_delivery way, const swx_buf *out, const uint8_t *text, size_t size)
{
    const bool words = memchr(out->data, '\n', out->size - 1);
    static const char join[] = "'\\''${-:0:0' \\\n'}$'\\''";
    const uint8_t *at = skip(out->data, words ? "\\builtin eval \\\\builtin eval " : "\\builtin eval ");
    at = skip(skip(at, size && text[0] == '-' ? "-- " : ""), words ? "'$'\\''" : "$'");
    size_t backslashes = 0;
    while (backslashes < size && text[size - 1 - backslashes] == '\\') {
        backslashes++;
    }
    for (size_t i = 0; i < size + backslashes % 2; i++) {
        bool joined =
            words && (size_t)(out->data + out->size - at) >= sizeof(join) && memcmp(at, join, sizeof(join) - 1) == 0;
        at += joined ? sizeof(join) - 1 : 0;
        uint8_t c = *at++;
        if (c == '\\') {
            c = *at++;
            if (c >= '0' && c <= '3') {
                c = (uint8_t)((c - '0') << 6 | (at[0] - '0') << 3 | (at[1] - '0'));
                at += 2;
            } else {
                c = c == 'n' ? '\n' : c == 't' ? '\t' : c;
            }
        }
        require(c == (i < size ? text[i] : way == SWX_DELIVERY_DOCUMENT ? '\n' : '\\'));
    }
    require(skip(at, words ? "'\\'\n" : "'\n") == out->data + out->size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    swx_scan scan, body;
    uint8_t *text = malloc(size ? size : 1); /* exactly its size, so that the sanitizer sees a byte beyond */
    require(text != NULL);
    if (size) {
        memcpy(text, data, size);
    }
    swx_command_scan(text, size, &scan);
    require(scan.body_start + scan.body_size <= size);
    swx_command_scan(text + scan.body_start, scan.body_size, &body);
    /* without the blank lines after it, a joined line at the end has nothing left to join */
    bool joined = body.body_size > 1 && text[scan.body_start + scan.body_size - 1] == '\n';
    require(scan.verdict == SWX_UNSURE || body.verdict == scan.verdict || joined);
    swx_delivery way = swx_command_delivery(&scan, size & 1, size >> 1 & 7, size & 16);
    if (way != SWX_DELIVERY_NONE && !(scan.flags & SWX_SCAN_NUL)) {
        swx_buf out;
        swx_buf_init(&out, SIZE_MAX / 2);
        require(swx_command_encode(way, text, size, &out) == SWX_OK);
        size_t line = 0;
        for (size_t i = 0; i < out.size; i++) {
            require(way == SWX_DELIVERY_RAW || ++line <= (way < SWX_DELIVERY_EVAL ? SWX_LINE_MAX : SWX_SHELL_READ - 1));
            line = out.data[i] == '\n' ? 0 : line;
        }
        require(line == 0);
        swx_buf_free(&out);
        way = size & 2 ? SWX_DELIVERY_EVAL : SWX_DELIVERY_DOCUMENT;
        require(swx_command_encode(way, text, size, &out) == SWX_OK);
        expect_quoted(way, &out, text, size);
        swx_buf_free(&out);
    }
    free(text);
    return 0;
}
