/* A stream, after a byte that says how it is cut: any cut gives the same payloads and the same error at its place. */
#include "harness.h"
#include "swx_frame.h"

/* Walks all values of a payload, as one that has no limits would: none reaches beyond it. */
static void walk(swx_span payload)
{
    size_t at = 0;
    swx_value value;
    while (at < payload.size && swx_value_read(payload.bytes + at, payload.size - at, &value) && value.kind < SWX_EXT) {
        CHECK(value.header + value.body <= payload.size - at);
        at += value.header + value.body;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) {
        return 0;
    }
    swx_frame_stream whole = { .max_frame = 64 }, cut = { .max_frame = 64 };
    swx_error expected = { 0 }, err = { 0 };
    swx_span payload, same;
    swx_status status;
    const uint8_t *at = data + 1;
    size_t left = size - 1, unread = size - 1;
    do {
        status = swx_frame_take(&whole, &at, &left, &payload, &expected);
        swx_status other = SWX_MORE;
        while (unread && other == SWX_MORE) {
            size_t piece = 1 + data[0] % 7, chunk = piece < unread ? piece : unread, rest = chunk;
            uint8_t *copy = malloc(chunk); /* so that the sanitizer sees a byte too far */
            const uint8_t *in = copy;
            CHECK(copy);
            memcpy(copy, data + size - unread, chunk);
            other = swx_frame_take(&cut, &in, &rest, &same, &err);
            unread -= chunk - rest;
            if (other == SWX_OK) {
                CHECK(status == SWX_OK && same.size == payload.size &&
                      memcmp(same.bytes, payload.bytes, same.size) == 0);
            }
            free(copy);
        }
        CHECK(other == status);
        if (status == SWX_OK) {
            walk(payload);
        }
    } while (status == SWX_OK);
    CHECK(status == SWX_MORE || (err.position == expected.position && err.text == expected.text));
    CHECK(whole.held.size == cut.held.size || status != SWX_MORE);
    swx_frame_reset(&whole);
    swx_frame_reset(&cut);
    return 0;
}
