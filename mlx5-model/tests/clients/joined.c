/*
 * Both ends of a cable in one process, on two devices or two ports of one device. Frames travel in
 * both directions at the same time, complete and in order, and each end counts its own frames.
 *
 *   joined DEVICE PORT DEVICE PORT
 */
#define _GNU_SOURCE
#include "nic.h"

enum { WINDOW = 16, FRAMES = 5000, LEN = 600 };

struct end {
	struct nic nic;
	int port;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_flow *flow;
	uint32_t sent, completed, received;
	uint64_t sent_before, received_before;
};

static void open_end(struct end *end, const char *device, int port)
{
	end->nic = nic_open(device);
	end->port = port;
	end->cq = make_cq(&end->nic, 4 * WINDOW, NULL);
	struct ibv_qp_cap cap = { .max_send_wr = WINDOW, .max_recv_wr = 2 * WINDOW, .max_send_sge = 1, .max_recv_sge = 1 };
	end->qp = make_qp(&end->nic, end->cq, cap, 0);
	make_ready(end->qp, (uint8_t)port);
	end->flow = take_all(end->qp, (uint8_t)port);
	for (unsigned i = 0; i < 2 * WINDOW; i++)
		post_buffer(&end->nic, end->qp, i);
	end->sent_before = counter_of(&end->nic, port, "counters/port_xmit_packets");
	end->received_before = counter_of(&end->nic, port, "counters/port_rcv_packets");
}

static void close_end(struct end *end)
{
	await_counter(&end->nic, end->port, "counters/port_xmit_packets", end->sent_before + FRAMES);
	await_counter(&end->nic, end->port, "counters/port_rcv_packets", end->received_before + FRAMES);
	CHECK(counter_of(&end->nic, end->port, "hw_counters/wire_dropped") == 0);
	CHECK(!ibv_destroy_flow(end->flow));
	CHECK(!ibv_destroy_qp(end->qp));
	CHECK(!ibv_destroy_cq(end->cq));
	nic_close(&end->nic);
}

/* Sends a frame if the other end has a buffer for it, and receives a frame. Returns true on
 * progress. */
static bool send_and_receive(struct end *end, const struct end *other, uint8_t mark)
{
	struct ibv_wc wc;
	bool moved = false;

	if (end->sent < FRAMES && end->sent - end->completed < WINDOW && end->sent - other->received < WINDOW) {
		size_t at = end->sent % WINDOW * NIC_BUFFER;
		udp_frame(end->nic.memory + at, LEN, end->sent);
		end->nic.memory[at + 11] = mark;
		send_frame(&end->nic, end->qp, end->sent++, at, LEN);
		moved = true;
	}
	int n = ibv_poll_cq(end->cq, 1, &wc);
	CHECK(n >= 0);
	if (!n)
		return moved;
	CHECK_SAYING(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
	if (wc.opcode == IBV_WC_SEND) {
		CHECK(wc.wr_id == end->completed++);
		return true;
	}
	uint8_t expected[LEN];
	udp_frame(expected, LEN, end->received);
	expected[11] = mark ^ 1;
	CHECK(wc.byte_len == LEN);
	CHECK_SAYING(!memcmp(received_at(&end->nic, (unsigned)wc.wr_id), expected, LEN), "frame %u", end->received);
	end->received++;
	post_buffer(&end->nic, end->qp, (unsigned)wc.wr_id);
	return true;
}

int main(int argc, char **argv)
{
	struct end a = { 0 }, b = { 0 };

	CHECK_SAYING(argc == 5, "usage: joined DEVICE PORT DEVICE PORT");
	open_end(&a, argv[1], atoi(argv[2]));
	open_end(&b, argv[3], atoi(argv[4]));
	/* The second end is connected once it is open, so from here on no frame is lost. */
	double last = seconds();
	while (a.received < FRAMES || b.received < FRAMES || a.completed < FRAMES || b.completed < FRAMES) {
		bool moved = send_and_receive(&a, &b, 0);
		if (send_and_receive(&b, &a, 1) || moved)
			last = seconds();
		else
			sched_yield();
		CHECK_SAYING(seconds() - last < HANG, "no frame after %u and %u frames", a.received, b.received);
	}
	close_end(&a);
	close_end(&b);
	puts("ok");
	return 0;
}
