/* The stream gives the same at every cut, in place as well; no ESC and no C1 is left, and nothing of plain text is
 * lost. */
#include "harness.h"
#include "swx_strip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) {
        return 0;
    }
    size_t chunk = data[0] + (size_t)1, total = 0, written, whole;
    data += 1;
    size -= 1;
    uint8_t *out = malloc(size + SWX_STRIP_HELD), *place = malloc(size ? size : 1);
    CHECK(out && place);
    swx_strip strip;
    swx_strip_init(&strip);
    for (size_t at = 0; at < size; at += chunk) {
        size_t n = size - at < chunk ? size - at : chunk;
        uint8_t *room = malloc(n + SWX_STRIP_HELD);
        CHECK(room != NULL);
        written = swx_strip_feed(&strip, data + at, n, room);
        CHECK(written <= n + SWX_STRIP_HELD && total + written <= at + n);
        memcpy(out + total, room, written);
        total += written;
        free(room);
    }
    written = swx_strip_finish(&strip, out + total);
    total += written;
    if (size) {
        memcpy(place, data, size);
    }
    whole = swx_strip_whole(place, size, false);
    CHECK(whole == total && memcmp(place, out, total) == 0);
    CHECK(swx_strip_needed(data, size) || total == size);
    for (size_t i = 0; i < total; i++) {
        CHECK(out[i] != 0x1b && (i == 0 || out[i - 1] != 0xc2 || out[i] < 0x80 || out[i] > 0x9f || out[i] == 0x85));
    }
    CHECK(!swx_strip_needed(out, total) && swx_strip_whole(out, total, false) == total &&
          memcmp(place, out, total) == 0);
    whole = swx_strip_whole(out, total, true);
    CHECK(whole <= total && (total == 0 || memchr(place, '\r', total) || whole == total));
    free(out);
    free(place);
    return 0;
}
