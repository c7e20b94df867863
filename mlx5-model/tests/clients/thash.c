/*
 * Prints the hashes that DPDK's software Toeplitz computes for frames: an independent reference for
 * receive-side scaling.
 *
 *   thash KEY addresses|ports TABLE_SIZE FRAMES
 *
 * KEY: 80 hexadecimal digits. FRAMES: a file of untagged Ethernet frames with complete IPv4 or IPv6
 * headers without options, each preceded by its length in two bytes, big endian. Prints a line for
 * each frame: the hash in hexadecimal, and the queue from an indirection table of TABLE_SIZE
 * entries whose Nth entry is queue N. Requires package libdpdk-dev.
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_thash.h>

#define KEY_BYTES 40

static uint16_t be16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static uint32_t be32(const uint8_t *p)
{
	return (uint32_t)be16(p) << 16 | be16(p + 2);
}

int main(int argc, char **argv)
{
	uint8_t key[KEY_BYTES], frame[65536], length[2];
	union rte_thash_tuple tuple;

	if (argc != 5 || strlen(argv[1]) != 2 * KEY_BYTES) {
		fprintf(stderr, "usage: thash KEY addresses|ports TABLE_SIZE FRAMES\n");
		return 2;
	}
	for (int i = 0; i < KEY_BYTES; i++) {
		char digits[3] = { argv[1][2 * i], argv[1][2 * i + 1], 0 };

		key[i] = (uint8_t)strtoul(digits, NULL, 16);
	}
	const int ports = strcmp(argv[2], "ports") == 0;
	const uint32_t table_size = (uint32_t)atoi(argv[3]);
	FILE *frames = fopen(argv[4], "rb");

	if (!frames) {
		perror(argv[4]);
		return 1;
	}

	while (fread(length, 1, 2, frames) == 2) {
		const size_t size = be16(length);
		uint32_t words;

		if (fread(frame, 1, size, frames) != size || size < 14 + 40 + 4) {
			fprintf(stderr, "thash: a frame is truncated or shorter than its headers\n");
			return 1;
		}
		const uint8_t *ip = frame + 14;

		memset(&tuple, 0, sizeof(tuple));
		if (be16(frame + 12) == 0x0800) {
			tuple.v4.src_addr = be32(ip + 12);
			tuple.v4.dst_addr = be32(ip + 16);
			tuple.v4.sport = be16(ip + 20);
			tuple.v4.dport = be16(ip + 22);
			words = ports ? RTE_THASH_V4_L4_LEN : RTE_THASH_V4_L3_LEN;
		} else {
			for (int i = 0; i < 4; i++) {
				const uint32_t from = be32(ip + 8 + 4 * i), to = be32(ip + 24 + 4 * i);

				/* An array of bytes, from DPDK 24.11 on a structure that contains it. */
				memcpy((uint8_t *)&tuple.v6.src_addr + 4 * i, &from, 4);
				memcpy((uint8_t *)&tuple.v6.dst_addr + 4 * i, &to, 4);
			}
			tuple.v6.sport = be16(ip + 40);
			tuple.v6.dport = be16(ip + 42);
			words = ports ? RTE_THASH_V6_L4_LEN : RTE_THASH_V6_L3_LEN;
		}
		const uint32_t hash = rte_softrss((uint32_t *)&tuple, words, key);

		printf("%08x %u\n", hash, hash % table_size);
	}
	fclose(frames);
	return 0;
}
