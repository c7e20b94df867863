/*
 * A port with a full buffer: frames return from the wire faster than they are written to memory.
 * Each frame is in one counter: no WQE was posted, or the port buffer was full (`rx_discards_phy`
 * of `ethtool -S`).
 */
#define _GNU_SOURCE
#include "nic.h"
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/* ROOM: capacity of the wire in frames, which acts as the port's buffer. */
enum { DEPTH = 64, LEN = 60, ROOM = 4096, COUNT = ROOM + 1000, STATISTICS = 64 };

/* Returns a statistic of the port's interface. */
static uint64_t statistic(const char *name)
{
	struct {
		struct ethtool_gstrings head;
		char names[STATISTICS][ETH_GSTRING_LEN];
	} strings = { .head = { .cmd = ETHTOOL_GSTRINGS, .string_set = ETH_SS_STATS, .len = STATISTICS } };
	struct {
		struct ethtool_stats head;
		uint64_t values[STATISTICS];
	} stats = { .head = { .cmd = ETHTOOL_GSTATS, .n_stats = STATISTICS } };
	struct ifreq request = { .ifr_name = "mlx5_0p1" };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	CHECK(fd >= 0);
	request.ifr_data = (char *)&strings;
	CHECK(ioctl(fd, SIOCETHTOOL, &request) == 0);
	request.ifr_data = (char *)&stats;
	CHECK(ioctl(fd, SIOCETHTOOL, &request) == 0);
	close(fd);
	CHECK(strings.head.len == stats.head.n_stats);
	for (unsigned i = 0; i < strings.head.len; i++)
		if (!strcmp(strings.names[i], name))
			return stats.values[i];
	CHECK_SAYING(false, "no statistic %s", name);
	return 0;
}

/* The model delays writes to memory until the file exists. */
int main(int argc, char **argv)
{
	CHECK_SAYING(argc == 2, "usage: discards FILE");
	unlink(argv[1]);
	struct nic nic = nic_open("mlx5_0");
	struct ibv_cq *cq = make_cq(&nic, 2 * DEPTH, NULL);
	struct ibv_qp_cap cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 };
	struct ibv_qp *qp = make_qp(&nic, cq, cap, 0);

	make_ready(qp, 1);
	struct ibv_flow *flow = take_all(qp, 1);
	CHECK(statistic("rx_discards_phy") == 0);
	udp_frame(nic.memory, LEN, 1);
	for (unsigned i = 0; i < COUNT; i++) {
		send_frame(&nic, qp, i, 0, LEN);
		CHECK(await(cq).wr_id == i);
	}
	FILE *file = fopen(argv[1], "w");
	CHECK(file && fclose(file) == 0);
	double began = seconds();
	uint64_t no_wqe, discarded;
	do {
		CHECK(seconds() - began < 60);
		no_wqe = counter_of(&nic, 1, "hw_counters/out_of_buffer");
		discarded = statistic("rx_discards_phy");
		CHECK(no_wqe + discarded <= COUNT);
	} while (no_wqe + discarded < COUNT);
	CHECK_SAYING(discarded > 0 && no_wqe >= ROOM, "%lu discarded, %lu without a WQE", discarded, no_wqe);
	CHECK(counter_of(&nic, 1, "hw_counters/wire_dropped") == 0);
	CHECK(ibv_destroy_flow(flow) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	nic_close(&nic);
	puts("ok");
	return 0;
}
