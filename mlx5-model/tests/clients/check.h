/* Helpers of all clients: checks that print their location, and the Toeplitz hash by definition. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Exits with status 1 unless `x` holds. */
#define CHECK(x)                                                                                                   \
	do {                                                                                                       \
		if (!(x)) {                                                                                        \
			fprintf(stderr, "%s:%d: %s does not hold (errno %d, %s)\n", __FILE__, __LINE__, #x, errno, \
				strerror(errno));                                                                  \
			exit(1);                                                                                   \
		}                                                                                                  \
	} while (0)

/* Exits with status 1 and a formatted message unless `x` holds. */
#define CHECK_SAYING(x, ...)                                                                 \
	do {                                                                                 \
		if (!(x)) {                                                                  \
			fprintf(stderr, "%s:%d: %s does not hold: ", __FILE__, __LINE__, #x); \
			fprintf(stderr, __VA_ARGS__);                                        \
			fputc('\n', stderr);                                                 \
			exit(1);                                                             \
		}                                                                            \
	} while (0)

/* Deadline in seconds. A longer wait counts as a hang, also on a slow machine. */
#define HANG 120

#define KEY_LEN 40

/* Microsoft's verification key. It is not symmetric, so that swapped source and destination are
* detected. */
static const uint8_t rss_key[KEY_LEN] = {
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
	0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
};

static inline unsigned key_bit(unsigned n)
{
	return rss_key[n / 8] >> (7 - n % 8) & 1;
}

/* Returns the Toeplitz hash: for each set bit n of the input, the 32 key bits from bit n on are
* combined by XOR. */
static inline uint32_t toeplitz(const uint8_t *input, unsigned len)
{
	uint32_t hash = 0;

	for (unsigned n = 0; n < len * 8; n++) {
		if (!(input[n / 8] >> (7 - n % 8) & 1))
			continue;
		uint32_t window = 0;
		for (unsigned k = n; k < n + 32; k++)
			window = window << 1 | key_bit(k);
		hash ^= window;
	}
	return hash;
}

/* Returns the sequence number in the last 8 bytes of a synthetic frame: 0 for the first frame. */
static inline uint64_t sequence(const uint8_t *frame, uint32_t len)
{
	uint64_t number = 0;

	for (unsigned i = 0; i < 8; i++)
		number |= (uint64_t)frame[len - 8 + i] << (8 * i);
	return number;
}

static inline double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
