/* Helpers of clients that send frames: a device, its memory, and RAW_PACKET QPs. */
#ifndef NIC_H
#define NIC_H

#include "check.h"
#include <infiniband/verbs.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <unistd.h>

enum {
	NIC_MEMORY = 1 << 20,
	/* Offset of received frames: the lower half holds frames to send, the upper half received
	 * frames. */
	NIC_RECEIVED = NIC_MEMORY / 2,
	NIC_BUFFER = 2048,
	/* Offset of the number that `udp_frame` writes after the Ethernet, IPv4 and UDP headers. */
	NUMBER_AT = 14 + 20 + 8,
};

struct nic {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	uint8_t *memory;
	uint64_t khz; /* frequency of the device's clock */
};

/* Opens the device `name`, or the first device if `name` is NULL. */
static inline struct nic nic_open(const char *name)
{
	struct nic nic = { 0 };
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list);
	for (int i = 0; list[i] && !nic.context; i++)
		if (!name || !strcmp(ibv_get_device_name(list[i]), name))
			nic.context = ibv_open_device(list[i]);
	CHECK_SAYING(nic.context, "no device %s", name ? name : "found");
	ibv_free_device_list(list);
	struct ibv_device_attr_ex attr;
	CHECK(!ibv_query_device_ex(nic.context, NULL, &attr));
	nic.khz = attr.hca_core_clock;
	CHECK(nic.khz > 0);
	nic.pd = ibv_alloc_pd(nic.context);
	CHECK(nic.pd);
	nic.memory = aligned_alloc(4096, NIC_MEMORY);
	CHECK(nic.memory);
	memset(nic.memory, 0, NIC_MEMORY);
	nic.mr = ibv_reg_mr(nic.pd, nic.memory, NIC_MEMORY, IBV_ACCESS_LOCAL_WRITE);
	CHECK(nic.mr);
	return nic;
}

static inline void nic_close(struct nic *nic)
{
	CHECK(!ibv_dereg_mr(nic->mr));
	CHECK(!ibv_dealloc_pd(nic->pd));
	CHECK(!ibv_close_device(nic->context));
	free(nic->memory);
}

static inline struct ibv_cq *make_cq(struct nic *nic, int cqe, struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq = ibv_create_cq(nic->context, cqe, NULL, channel, 0);

	CHECK(cq);
	return cq;
}

/* Creates a QP with its own send and receive queues, in RESET; `flags` are IBV_QP_CREATE_*. */
static inline struct ibv_qp *make_qp(struct nic *nic, struct ibv_cq *cq, struct ibv_qp_cap cap, uint32_t flags)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RAW_PACKET,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = cap,
		.pd = nic->pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (flags ? IBV_QP_INIT_ATTR_CREATE_FLAGS : 0),
		.create_flags = flags,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(nic->context, &attr);

	CHECK(qp);
	return qp;
}

static inline void to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	CHECK_SAYING(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "to state %d", state);
}

/* Moves a QP from RESET to RTS on `port`. */
static inline void make_ready(struct ibv_qp *qp, uint8_t port)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = port };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
	to_state(qp, IBV_QPS_RTR);
	to_state(qp, IBV_QPS_RTS);
}

/* Creates a rule that matches every frame of a port. */
static inline struct ibv_flow *take_all(struct ibv_qp *qp, uint8_t port)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
	} rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof rule, .num_of_specs = 1, .port = port },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof rule.eth },
	};
	struct ibv_flow *flow = ibv_create_flow(qp, &rule.attr);

	CHECK(flow);
	return flow;
}

/* Returns receive buffer `slot`. */
static inline uint8_t *received_at(const struct nic *nic, unsigned slot)
{
	return nic->memory + NIC_RECEIVED + slot % ((NIC_MEMORY - NIC_RECEIVED) / NIC_BUFFER) * NIC_BUFFER;
}

static inline void post_buffer(struct nic *nic, struct ibv_qp *qp, unsigned slot)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)received_at(nic, slot), .length = NIC_BUFFER, .lkey = nic->mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

/* Posts the first `length` bytes of receive buffer `slot` to a WQ. */
static inline void post_to_wq(struct nic *nic, struct ibv_wq *wq, unsigned slot, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)received_at(nic, slot), .length = length, .lkey = nic->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!ibv_post_wq_recv(wq, &wr, &bad));
}

static inline void put16(uint8_t *to, unsigned value)
{
	to[0] = (uint8_t)(value >> 8);
	to[1] = (uint8_t)value;
}

/* Writes a UDP frame of `len` bytes that contains `number`, without checksums. */
static inline void udp_frame(uint8_t *frame, unsigned len, uint32_t number)
{
	static const uint8_t macs[12] = { 2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8 };

	memset(frame, 0, len);
	memcpy(frame, macs, sizeof macs);
	put16(frame + 12, 0x0800);
	frame[14] = 0x45;
	put16(frame + 16, len - 14);
	frame[22] = 64;
	frame[23] = 17;
	memcpy(frame + 26, (uint8_t[]){ 10, 0, 0, 1, 10, 0, 0, 2 }, 8);
	put16(frame + 34, 1000);
	put16(frame + 36, 2000);
	put16(frame + 38, len - 34);
	memcpy(frame + NUMBER_AT, &number, sizeof number);
	for (unsigned i = NUMBER_AT + 4; i < len; i++)
		frame[i] = (uint8_t)(i * 7 + number);
}

/* Posts `count` pieces of memory to send as one frame. */
static inline void send_pieces(struct ibv_qp *qp, uint64_t id, struct ibv_sge *pieces, int count, unsigned flags)
{
	struct ibv_send_wr wr = {
		.wr_id = id, .sg_list = pieces, .num_sge = count, .opcode = IBV_WR_SEND, .send_flags = flags,
	}, *bad;

	CHECK(!ibv_post_send(qp, &wr, &bad));
}

/* Sends `len` bytes at offset `at` of the memory. */
static inline void send_frame(struct nic *nic, struct ibv_qp *qp, uint64_t id, size_t at, uint32_t len)
{
	struct ibv_sge sge = { .addr = (uintptr_t)(nic->memory + at), .length = len, .lkey = nic->mr->lkey };

	send_pieces(qp, id, &sge, 1, IBV_SEND_SIGNALED);
}

/* Waits for the next completion, with any status. */
static inline struct ibv_wc await_any(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	double deadline = seconds() + HANG;

	for (;;) {
		int n = ibv_poll_cq(cq, 1, &wc);
		CHECK(n >= 0);
		if (n)
			return wc;
		CHECK_SAYING(seconds() < deadline, "no completion");
		sched_yield();
	}
}

/* Waits for the next completion and checks that it is a success. */
static inline struct ibv_wc await(struct ibv_cq *cq)
{
	struct ibv_wc wc = await_any(cq);

	CHECK_SAYING(wc.status == IBV_WC_SUCCESS, "WR %lu: %s", (unsigned long)wc.wr_id, ibv_wc_status_str(wc.status));
	return wc;
}

/*
 * Returns the NIC's clock in nanoseconds at the beginning of the NIC's last round. All actions of a
 * round happen at that time. Timeouts measured by this clock do not depend on the scheduling of the
 * NIC's thread.
 */
static inline uint64_t nic_clock(struct nic *nic)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };

	CHECK(!ibv_query_rt_values_ex(nic->context, &values));
	return (uint64_t)((unsigned __int128)values.raw_clock.tv_nsec * 1000000 / nic->khz);
}

/* Waits until the NIC has completed two rounds: all work that was pending before is done. */
static inline void await_rounds(struct nic *nic)
{
	double deadline = seconds() + HANG;
	uint64_t last = nic_clock(nic);

	/* The first change may belong to a round that had begun before. Each of the next two ends a
	 * round. */
	for (int changes = 0; changes < 3;) {
		uint64_t now = nic_clock(nic);
		CHECK_SAYING(now >= last, "the NIC's clock went back from %lu to %lu ns", (unsigned long)last,
			     (unsigned long)now);
		changes += now > last;
		last = now;
		CHECK_SAYING(seconds() < deadline, "the NIC's clock does not advance");
		sched_yield();
	}
}

static inline bool is_readable(int fd, int milliseconds)
{
	struct pollfd ready = { .fd = fd, .events = POLLIN };

	return poll(&ready, 1, milliseconds) == 1;
}

/* Waits for the next asynchronous event and checks its type. */
static inline void await_event(struct nic *nic, enum ibv_event_type type)
{
	struct ibv_async_event event;

	CHECK_SAYING(is_readable(nic->context->async_fd, HANG * 1000), "no %s", ibv_event_type_str(type));
	CHECK(!ibv_get_async_event(nic->context, &event));
	CHECK_SAYING(event.event_type == type, "%s, not %s", ibv_event_type_str(event.event_type),
		     ibv_event_type_str(type));
	ibv_ack_async_event(&event);
}

static inline void no_event(struct nic *nic)
{
	CHECK(!is_readable(nic->context->async_fd, 0));
}

/* Returns the number in a file. */
static inline uint64_t number_in(const char *path)
{
	char text[64] = "";
	FILE *file = fopen(path, "r");

	CHECK_SAYING(file, "%s", path);
	CHECK_SAYING(fgets(text, sizeof text, file), "%s", path);
	fclose(file);
	return strtoull(text, NULL, 10);
}

/* Returns a counter of a port; `name` is the path below the port's directory. */
static inline uint64_t counter_of(struct nic *nic, int port, const char *name)
{
	char path[512];

	snprintf(path, sizeof path, "%s/ports/%d/%s", nic->context->device->ibdev_path, port, name);
	return number_in(path);
}

/* Waits until a counter reaches `value`. A NIC updates its counters periodically, not with every
 * frame. */
static inline void await_counter(struct nic *nic, int port, const char *name, uint64_t value)
{
	double deadline = seconds() + HANG;

	while (counter_of(nic, port, name) < value)
		CHECK_SAYING(seconds() < deadline, "%s is %lu, not %lu", name,
			     (unsigned long)counter_of(nic, port, name), (unsigned long)value);
	CHECK_SAYING(counter_of(nic, port, name) == value, "%s is %lu, not %lu", name,
		     (unsigned long)counter_of(nic, port, name), (unsigned long)value);
}

#endif
