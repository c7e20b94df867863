/*
 * Sends frames of one size at a steady rate, for benches/peers.
 *
 *   send INTERFACE BYTES FRAMES-PER-SECOND SECONDS
 *
 * A rate of 0 means as fast as possible. The frames have EtherType 0x88b5 (IEEE 802, local experiments), which
 * distinguishes them from the interface's other traffic, and carry their number. Prints the number of frames sent.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { BATCH = 32, LEAST = 60, MOST = 9000, ETHERTYPE = 0x88b5, HEADER = 14 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	static uint8_t frame[BATCH][MOST];
	struct iovec vec[BATCH];
	struct mmsghdr batch[BATCH] = { 0 };

	if (argc != 5)
		errx(2, "usage: send INTERFACE BYTES FRAMES-PER-SECOND SECONDS");
	size_t size = strtoul(argv[2], NULL, 10);
	double rate = strtod(argv[3], NULL), seconds = strtod(argv[4], NULL);
	if (size < LEAST || size > MOST || rate < 0 || seconds <= 0)
		errx(2, "BYTES must be %d to %d, FRAMES-PER-SECOND at least 0, SECONDS above 0", LEAST, MOST);

	int fd = socket(AF_PACKET, SOCK_RAW, 0), yes = 1;
	struct sockaddr_ll to = { .sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(argv[1]) };
	if (fd < 0 || !to.sll_ifindex || bind(fd, (struct sockaddr *)&to, sizeof to))
		err(1, "%s", argv[1]);
	/* Bypasses the queueing discipline, so that only the receiver can drop frames. */
	if (setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &yes, sizeof yes))
		err(1, "PACKET_QDISC_BYPASS");
	for (int i = 0; i < BATCH; i++) {
		uint16_t type = htons(ETHERTYPE);
		memset(frame[i], 2, HEADER - sizeof type);
		memcpy(frame[i] + HEADER - sizeof type, &type, sizeof type);
		vec[i] = (struct iovec){ .iov_base = frame[i], .iov_len = size };
		batch[i].msg_hdr = (struct msghdr){ .msg_iov = &vec[i], .msg_iovlen = 1 };
	}
	uint64_t sent = 0;
	double start = now(), end = start + seconds;
	for (double at = start; at < end; at = now()) {
		double due = rate > 0 ? (at - start) * rate - (double)sent : BATCH;
		unsigned count = due < 1 ? 0 : due < BATCH ? (unsigned)due : BATCH;
		if (count == 0) {
			struct timespec rest = { .tv_nsec = 50000 };
			nanosleep(&rest, NULL);
			continue;
		}
		for (unsigned i = 0; i < count; i++) {
			uint64_t number = sent + i;
			memcpy(frame[i] + HEADER, &number, sizeof number);
		}
		int n = sendmmsg(fd, batch, count, 0);
		if (n < 0)
			err(1, "sendmmsg");
		sent += (uint64_t)n;
	}
	printf("%llu\n", (unsigned long long)sent);
	return 0;
}
