/*
 * Requests that the kernel and the mlx5 driver refuse. Each row makes one invalid request through
 * the verb that a program would call, and has the expected errno for root, for an ordinary user,
 * and for a user with CAP_NET_RAW only. Rows whose names end in "_taken" make nearly the same
 * request and must succeed: they show that the refusal of the neighbouring row is due to the one
 * difference.
 *
 *     refusals full|bare root|user|net_raw
 *
 * `full` requires a device with all capabilities, `bare` a device without optional ones: see the
 * tables at the end. The program prints a line for each row. The exit status is 1 if a result is
 * not the expected one.
 */
#define _GNU_SOURCE
#include "check.h"
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <linux/types.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <unistd.h>

enum { PORT = 1, WRS = 16, BUFFER = 4096 };
enum { IPV4 = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4, IPV6 = IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6 };
enum {
	TCP = IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP,
	UDP = IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP,
};
#define SPI ((uint64_t)IBV_RX_HASH_IPSEC_SPI)

static struct ibv_context *context;
static struct ibv_device_attr_ex device;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_wq *wqs[2];
/* Indirection tables with two entries and with one entry. */
static struct ibv_rwq_ind_table *table, *single;
static struct ibv_srq *srq;
/* Destination of rules. A user that may not create such a QP uses the placeholder: the kernel
 * refuses the request before it looks up the QP. */
static struct ibv_qp placeholder, *target;
static uint8_t buffer[BUFFER];

/* Returns the errno of a verb that returns an int: -1, the negative errno, or the errno. */
static int outcome(int result)
{
	if (result == -1)
		return errno;
	return result < 0 ? -result : result;
}

/* ---- work queues and tables ---- */

static struct ibv_wq *make_wq(uint32_t max_wr, uint32_t flags)
{
	struct ibv_wq_init_attr attr = {
		.wq_type = IBV_WQT_RQ, .max_wr = max_wr, .max_sge = 1, .pd = pd, .cq = cq,
		.comp_mask = IBV_WQ_INIT_ATTR_FLAGS, .create_flags = flags,
	};

	errno = 0;
	return ibv_create_wq(context, &attr);
}

static int try_wq(uint32_t max_wr, uint32_t flags)
{
	struct ibv_wq *wq = make_wq(max_wr, flags);

	if (!wq)
		return errno;
	CHECK(!ibv_destroy_wq(wq));
	return 0;
}

static int wq_plain(void) { return try_wq(WRS, 0); }
static int wq_delay_drop(void) { return try_wq(WRS, IBV_WQ_FLAGS_DELAY_DROP); }
static int wq_cvlan_stripping(void) { return try_wq(WRS, IBV_WQ_FLAGS_CVLAN_STRIPPING); }
static int wq_scatter_fcs(void) { return try_wq(WRS, IBV_WQ_FLAGS_SCATTER_FCS); }
static int wq_end_padding(void) { return try_wq(WRS, IBV_WQ_FLAGS_PCI_WRITE_END_PADDING); }
static int wq_flag_unknown(void) { return try_wq(WRS, IBV_WQ_FLAGS_RESERVED); }
static int wq_without_wqes(void) { return try_wq(0, 0); }
/* Above the limit of all devices: libmlx5 refuses it. */
static int wq_too_long(void) { return try_wq(1 << 20, 0); }

/*
 * Writes EX_CREATE_WQ to the command file directly: libmlx5 checks the limits that the device
 * reports, but a program without libmlx5 need not.
 */
static int write_driver_wq(uint32_t max_wr, struct mlx5_ib_create_wq driver)
{
	static uint64_t ring[WRS * 64 / 8] __attribute__((aligned(4096))), record;
	struct ib_uverbs_ex_create_wq_resp answer;
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_ex_cmd_hdr extended;
		struct ib_uverbs_ex_create_wq core;
		struct mlx5_ib_create_wq driver;
	} command = {
		.header = {
			.command = IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_CREATE_WQ,
			.in_words = sizeof command.core / 8, .out_words = sizeof answer / 8,
		},
		.extended = { .response = (uintptr_t)&answer, .provider_in_words = sizeof command.driver / 8 },
		.core = {
			.wq_type = IB_UVERBS_WQT_RQ, .pd_handle = pd->handle, .cq_handle = cq->handle,
			.max_wr = max_wr, .max_sge = 1,
		},
		.driver = driver,
	};
	command.driver.buf_addr = (uintptr_t)ring;
	command.driver.db_addr = (uintptr_t)&record;
	command.driver.rq_wqe_shift = 6;

	_Static_assert(sizeof command.core % 8 == 0 && sizeof command.driver % 8 == 0, "counted in words of 8 bytes");
	if (write(context->cmd_fd, &command, sizeof command) != sizeof command)
		return errno;
	struct ib_uverbs_ex_destroy_wq_resp gone;
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_ex_cmd_hdr extended;
		struct ib_uverbs_ex_destroy_wq core;
	} destroy = {
		.header = {
			.command = IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_DESTROY_WQ,
			.in_words = sizeof destroy.core / 8, .out_words = sizeof gone / 8,
		},
		.extended = { .response = (uintptr_t)&gone },
		.core = { .wq_handle = answer.wq_handle },
	};
	CHECK(write(context->cmd_fd, &destroy, sizeof destroy) == sizeof destroy);
	return 0;
}

static int write_wq(uint32_t max_wr, uint32_t wqes)
{
	return write_driver_wq(max_wr, (struct mlx5_ib_create_wq){ .rq_wqe_count = wqes });
}

static int write_striding_wq(uint32_t comp_mask, uint32_t log_bytes, uint32_t log_strides)
{
	return write_driver_wq(WRS, (struct mlx5_ib_create_wq){
		.rq_wqe_count = WRS, .comp_mask = comp_mask, .single_stride_log_num_of_bytes = log_bytes,
		.single_wqe_log_num_of_strides = log_strides, .two_byte_shift_en = 1,
	});
}

static int wq_written(void) { return write_wq(WRS, WRS); }
static int wq_strides_smallest(void) { return write_striding_wq(MLX5_IB_CREATE_WQ_STRIDING_RQ, 6, 9); }
static int wq_strides_largest(void) { return write_striding_wq(MLX5_IB_CREATE_WQ_STRIDING_RQ, 13, 16); }
static int wq_strides_short(void) { return write_striding_wq(MLX5_IB_CREATE_WQ_STRIDING_RQ, 5, 9); }
static int wq_strides_long(void) { return write_striding_wq(MLX5_IB_CREATE_WQ_STRIDING_RQ, 14, 9); }
static int wq_strides_few(void) { return write_striding_wq(MLX5_IB_CREATE_WQ_STRIDING_RQ, 6, 8); }
static int wq_strides_many(void) { return write_striding_wq(MLX5_IB_CREATE_WQ_STRIDING_RQ, 6, 17); }
static int wq_strides_not_asked_for(void) { return write_striding_wq(0, 99, 99); }
static int wq_mask_unknown(void) { return write_striding_wq(2, 0, 0); }

static int dv_striding_wq(uint32_t log_strides)
{
	struct ibv_wq_init_attr attr = { .wq_type = IBV_WQT_RQ, .max_wr = WRS, .max_sge = 1, .pd = pd, .cq = cq };
	struct mlx5dv_wq_init_attr dv = {
		.comp_mask = MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ,
		.striding_rq_attrs = { .single_stride_log_num_of_bytes = 6, .single_wqe_log_num_of_strides = log_strides },
	};

	errno = 0;
	struct ibv_wq *wq = mlx5dv_create_wq(context, &attr, &dv);
	if (!wq)
		return errno;
	CHECK(!ibv_destroy_wq(wq));
	return 0;
}

static int wq_dv_strides(void) { return dv_striding_wq(9); }
static int wq_dv_strides_few(void) { return dv_striding_wq(8); }
static int wq_written_above_the_cap(void) { return write_wq(1 << 20, 1 << 20); }
static int wq_written_without_wqes(void) { return write_wq(0, 0); }

static int modify_wq(struct ibv_wq *wq, uint32_t mask, int state, uint32_t flag)
{
	struct ibv_wq_attr attr = {
		.attr_mask = mask, .wq_state = (enum ibv_wq_state)state, .curr_wq_state = wq->state, .flags = flag,
		.flags_mask = flag,
	};

	return outcome(ibv_modify_wq(wq, &attr));
}

static int modify_wq_nothing(void) { return modify_wq(wqs[0], 0, 0, 0); }
static int modify_wq_unknown(void) { return modify_wq(wqs[0], 8, 0, 0); }
static int modify_wq_no_state(void) { return modify_wq(wqs[0], IBV_WQ_ATTR_STATE, IBV_WQS_ERR + 1, 0); }
static int modify_wq_end_padding(void)
{
	return modify_wq(wqs[0], IBV_WQ_ATTR_FLAGS, 0, IBV_WQ_FLAGS_PCI_WRITE_END_PADDING);
}
static int modify_wq_cvlan(void)
{
	return modify_wq(wqs[0], IBV_WQ_ATTR_FLAGS, 0, IBV_WQ_FLAGS_CVLAN_STRIPPING);
}

static int modify_wq_error_to_ready(void)
{
	struct ibv_wq *wq = make_wq(WRS, 0);

	CHECK(wq && !modify_wq(wq, IBV_WQ_ATTR_STATE, IBV_WQS_RDY, 0));
	CHECK(!modify_wq(wq, IBV_WQ_ATTR_STATE, IBV_WQS_ERR, 0));
	int result = modify_wq(wq, IBV_WQ_ATTR_STATE, IBV_WQS_RDY, 0);
	CHECK(!modify_wq(wq, IBV_WQ_ATTR_STATE, IBV_WQS_RESET, 0));
	CHECK(!ibv_destroy_wq(wq));
	return result;
}

static struct ibv_rwq_ind_table *make_table(unsigned log)
{
	struct ibv_wq **entries = calloc(1u << log, sizeof *entries);

	CHECK(entries);
	for (unsigned i = 0; i < 1u << log; i++)
		entries[i] = wqs[i % 2];
	struct ibv_rwq_ind_table_init_attr attr = { .log_ind_tbl_size = log, .ind_tbl = entries };
	errno = 0;
	struct ibv_rwq_ind_table *made = ibv_create_rwq_ind_table(context, &attr);
	int saved = errno;
	free(entries);
	errno = saved;
	return made;
}

static int try_table(unsigned log)
{
	struct ibv_rwq_ind_table *made = make_table(log);

	if (!made)
		return errno;
	CHECK(!ibv_destroy_rwq_ind_table(made));
	return 0;
}

static unsigned largest_log(void)
{
	return __builtin_ctz(device.rss_caps.max_rwq_indirection_table_size);
}

static int table_largest(void) { return try_table(largest_log()); }
static int table_above_the_devices(void) { return try_table(largest_log() + 1); }
static int table_above_any(void) { return try_table(IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE + 1); }

/* ---- RSS QPs ---- */

static struct ibv_qp_init_attr_ex rss(uint64_t fields)
{
	return (struct ibv_qp_init_attr_ex){
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.pd = pd,
		.rwq_ind_tbl = table,
		.rx_hash_conf = {
			.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ, .rx_hash_key_len = KEY_LEN,
			.rx_hash_key = (uint8_t *)rss_key, .rx_hash_fields_mask = fields,
		},
	};
}

static int try_qp(struct ibv_qp_init_attr_ex attr, uint32_t dv_flags)
{
	struct mlx5dv_qp_init_attr dv = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS, .create_flags = dv_flags,
	};

	errno = 0;
	struct ibv_qp *qp = dv_flags ? mlx5dv_create_qp(context, &attr, &dv) : ibv_create_qp_ex(context, &attr);
	if (!qp)
		return errno;
	CHECK(!ibv_destroy_qp(qp));
	return 0;
}

static int rss_plain(void) { return try_qp(rss(IPV4 | TCP), 0); }

static int rss_other_function(void)
{
	struct ibv_qp_init_attr_ex attr = rss(IPV4);

	attr.rx_hash_conf.rx_hash_function = 2;
	return try_qp(attr, 0);
}

static int rss_key_of(uint8_t len)
{
	static uint8_t key[64];
	struct ibv_qp_init_attr_ex attr = rss(IPV4);

	attr.rx_hash_conf.rx_hash_key = key;
	attr.rx_hash_conf.rx_hash_key_len = len;
	return try_qp(attr, 0);
}
static int rss_key_short(void) { return rss_key_of(39); }
static int rss_key_long(void) { return rss_key_of(41); }
static int rss_key_none(void) { return rss_key_of(0); }

/*
 * Writes EX_CREATE_QP to the command file directly: libmlx5 cannot set the comp_mask of the
 * driver's part, and libibverbs itself refuses an RSS QP with its own receives. `change` modifies a
 * valid command.
 */
struct rss_command {
	struct ib_uverbs_cmd_hdr header;
	struct ib_uverbs_ex_cmd_hdr extended;
	struct ib_uverbs_ex_create_qp core;
	struct mlx5_ib_create_qp_rss driver;
};

static int rss_written(void (*change)(struct rss_command *))
{
	struct {
		struct ib_uverbs_ex_create_qp_resp core;
		struct mlx5_ib_create_qp_resp driver;
	} answer;
	struct rss_command command = {
		.header = {
			.command = IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_CREATE_QP,
			.in_words = sizeof command.core / 8, .out_words = sizeof answer.core / 8,
		},
		.extended = {
			.response = (uintptr_t)&answer, .provider_in_words = sizeof command.driver / 8,
			.provider_out_words = sizeof answer.driver / 8,
		},
		.core = {
			.pd_handle = pd->handle, .qp_type = IB_UVERBS_QPT_RAW_PACKET,
			.comp_mask = IB_UVERBS_CREATE_QP_MASK_IND_TABLE, .rwq_ind_tbl_handle = table->ind_tbl_handle,
		},
		.driver = {
			.rx_hash_fields_mask = IPV4, .rx_hash_function = MLX5_RX_HASH_FUNC_TOEPLITZ, .rx_key_len = KEY_LEN,
		},
	};

	_Static_assert(sizeof command.core % 8 == 0 && sizeof command.driver % 8 == 0, "counted in words of 8 bytes");
	change(&command);
	if (write(context->cmd_fd, &command, sizeof command) != sizeof command)
		return errno;
	struct ib_uverbs_destroy_qp_resp gone;
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_destroy_qp core;
	} destroy = {
		.header = {
			.command = IB_USER_VERBS_CMD_DESTROY_QP, .in_words = sizeof destroy / 4,
			.out_words = sizeof gone / 4,
		},
		.core = { .response = (uintptr_t)&gone, .qp_handle = answer.core.base.qp_handle },
	};
	CHECK(write(context->cmd_fd, &destroy, sizeof destroy) == sizeof destroy);
	return 0;
}

static void as_it_is(struct rss_command *command) { (void)command; }
static void with_comp_mask(struct rss_command *command) { command->driver.comp_mask = 1; }
static void with_recv_wr(struct rss_command *command) { command->core.max_recv_wr = 1; }
static void with_recv_sge(struct rss_command *command) { command->core.max_recv_sge = 1; }
static void with_srq(struct rss_command *command)
{
	command->core.is_srq = 1;
	command->core.srq_handle = srq->handle;
}
static int rss_by_hand(void) { return rss_written(as_it_is); }
static int rss_comp_mask(void) { return rss_written(with_comp_mask); }
static int rss_recv_wr(void) { return rss_written(with_recv_wr); }
static int rss_recv_sge(void) { return rss_written(with_recv_sge); }
static int rss_srq(void) { return rss_written(with_srq); }

static int rss_inner_bare(void) { return try_qp(rss(IBV_RX_HASH_INNER | IPV4), 0); }
static int rss_inner(void) { return try_qp(rss(IBV_RX_HASH_INNER | IPV4), MLX5DV_QP_CREATE_TUNNEL_OFFLOADS); }
static int rss_both_ips(void) { return try_qp(rss(IPV4 | IPV6), 0); }
static int rss_both_transports(void) { return try_qp(rss(IPV4 | TCP | UDP), 0); }
static int rss_spi_and_tcp(void) { return try_qp(rss(IPV4 | TCP | SPI), 0); }
static int rss_spi_and_udp(void) { return try_qp(rss(IPV6 | UDP | SPI), 0); }
static int rss_no_fields(void) { return try_qp(rss(0), 0); }

static int rss_no_fields_single(void)
{
	struct ibv_qp_init_attr_ex attr = rss(0);

	attr.rwq_ind_tbl = single;
	return try_qp(attr, 0);
}

static int rss_create_flags(void)
{
	struct ibv_qp_init_attr_ex attr = rss(IPV4);

	attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
	attr.create_flags = IBV_QP_CREATE_CVLAN_STRIPPING;
	return try_qp(attr, 0);
}

static int rss_vendor_flags(void) { return try_qp(rss(IPV4), MLX5DV_QP_CREATE_PACKET_BASED_CREDIT_MODE); }
static int rss_loopback_flags(void) { return try_qp(rss(IPV4), MLX5DV_QP_CREATE_TIR_ALLOW_SELF_LOOPBACK_UC); }

/* The kernel looks up the send CQ of an RSS QP only if the QP requests sends. */
static int rss_send_cq(void)
{
	struct ibv_qp_init_attr_ex attr = rss(IPV4);

	attr.send_cq = cq;
	attr.cap.max_send_wr = 1;
	return try_qp(attr, 0);
}

/* ---- RAW_PACKET QPs with their own queues ---- */

static struct ibv_qp *make_raw(uint32_t sends, uint32_t receives, struct ibv_srq *from)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RAW_PACKET, .send_cq = cq, .recv_cq = cq, .srq = from,
		.cap = {
			.max_send_wr = sends, .max_recv_wr = receives, .max_send_sge = !!sends, .max_recv_sge = !!receives,
		},
	};

	errno = 0;
	return ibv_create_qp(pd, &attr);
}

static int try_raw(uint32_t sends, uint32_t receives, struct ibv_srq *from)
{
	struct ibv_qp *qp = make_raw(sends, receives, from);

	if (!qp)
		return errno;
	CHECK(!ibv_destroy_qp(qp));
	return 0;
}

static int raw_plain(void) { return try_raw(4, 4, NULL); }
static int raw_srq_without_sends(void) { return try_raw(0, 0, srq); }
static int raw_srq_with_sends(void) { return try_raw(4, 0, srq); }

static int raw_flag_of(uint32_t flag)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RAW_PACKET, .send_cq = cq, .recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS, .pd = pd, .create_flags = flag,
	};

	return try_qp(attr, 0);
}
static int raw_vendor_flags(void)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RAW_PACKET, .send_cq = cq, .recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd,
	};

	return try_qp(attr, MLX5DV_QP_CREATE_PACKET_BASED_CREDIT_MODE);
}
static int raw_scatter_fcs(void) { return raw_flag_of(IBV_QP_CREATE_SCATTER_FCS); }
static int raw_cvlan_stripping(void) { return raw_flag_of(IBV_QP_CREATE_CVLAN_STRIPPING); }

/* Modifies a new QP along the steps of `way` and returns the result of the last step. */
static int raw_way(const struct ibv_qp_attr *way, const int *masks, int steps)
{
	struct ibv_qp *qp = make_raw(4, 4, NULL);
	int result = 0;

	if (!qp)
		return errno;
	for (int i = 0; i < steps; i++) {
		struct ibv_qp_attr step = way[i];
		result = outcome(ibv_modify_qp(qp, &step, masks[i]));
		CHECK_SAYING(i == steps - 1 || !result, "step %d: %s", i, strerror(result));
	}
	CHECK(!ibv_destroy_qp(qp));
	return result;
}

static const struct ibv_qp_attr to_init = { .qp_state = IBV_QPS_INIT, .port_num = PORT };
static const struct ibv_qp_attr to_rtr = { .qp_state = IBV_QPS_RTR }, to_rts = { .qp_state = IBV_QPS_RTS };
enum { STATE = IBV_QP_STATE, WITH_PORT = IBV_QP_STATE | IBV_QP_PORT };

static int raw_init_without_port(void) { return raw_way(&to_init, (int[]){ STATE }, 1); }
static int raw_init_with_port(void) { return raw_way(&to_init, (int[]){ WITH_PORT }, 1); }

static int raw_init_bad_port(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT + 1 };

	return raw_way(&attr, (int[]){ WITH_PORT }, 1);
}

static int raw_skips_init(void) { return raw_way(&to_rtr, (int[]){ STATE }, 1); }

static int raw_skips_rtr(void)
{
	return raw_way((struct ibv_qp_attr[]){ to_init, to_rts }, (int[]){ WITH_PORT, STATE }, 2);
}

static int raw_to_rts(void)
{
	return raw_way((struct ibv_qp_attr[]){ to_init, to_rtr, to_rts }, (int[]){ WITH_PORT, STATE, STATE }, 3);
}

static int raw_rtr_with_port(void)
{
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .port_num = PORT };

	return raw_way((struct ibv_qp_attr[]){ to_init, rtr }, (int[]){ WITH_PORT, WITH_PORT }, 2);
}

/* ---- memory regions ---- */

static int try_mr(int access)
{
	errno = 0;
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, access);

	if (!mr)
		return errno;
	CHECK(!ibv_dereg_mr(mr));
	return 0;
}

static int mr_local(void) { return try_mr(IBV_ACCESS_LOCAL_WRITE); }
static int mr_remote_write(void) { return try_mr(IBV_ACCESS_REMOTE_WRITE); }
static int mr_remote_atomic(void) { return try_mr(IBV_ACCESS_REMOTE_ATOMIC); }
static int mr_remote_read(void) { return try_mr(IBV_ACCESS_REMOTE_READ); }
static int mr_both_writes(void) { return try_mr(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE); }

/* ---- completion queues ---- */

static int try_cq(int cqe, int vector)
{
	errno = 0;
	struct ibv_cq *made = ibv_create_cq(context, cqe, NULL, NULL, vector);

	if (!made)
		return errno;
	CHECK(!ibv_destroy_cq(made));
	return 0;
}

static int cq_plain(void) { return try_cq(1, context->num_comp_vectors - 1); }
static int cq_empty(void) { return try_cq(0, 0); }
static int cq_negative(void) { return try_cq(-1, 0); }
static int cq_above_any(void) { return try_cq(1 << 25, 0); }
static int cq_vector(void) { return try_cq(1, context->num_comp_vectors); }
static int cq_largest(void) { return try_cq(device.orig_attr.max_cqe, 0); }
static int cq_above_the_devices(void) { return try_cq(device.orig_attr.max_cqe + 1, 0); }

static int try_compressed_cq(uint8_t format, uint16_t size)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 15 };
	struct mlx5dv_cq_init_attr dv = {
		.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE | MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE,
		.cqe_comp_res_format = format, .cqe_size = size,
	};

	errno = 0;
	struct ibv_cq_ex *made = mlx5dv_create_cq(context, &attr, &dv);
	if (!made)
		return errno;
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(made)));
	return 0;
}

static int cq_mini_hash(void) { return try_compressed_cq(MLX5DV_CQE_RES_FORMAT_HASH, 64); }
static int cq_mini_checksum(void) { return try_compressed_cq(MLX5DV_CQE_RES_FORMAT_CSUM, 64); }
static int cq_mini_stride(void) { return try_compressed_cq(MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX, 64); }
/* libmlx5 accepts any common bit, the driver exactly one. */
static int cq_mini_both(void)
{
	return try_compressed_cq(MLX5DV_CQE_RES_FORMAT_HASH | MLX5DV_CQE_RES_FORMAT_CSUM, 64);
}
static int cq_mini_none(void) { return try_compressed_cq(0, 64); }
static int cq_mini_of_128(void) { return try_compressed_cq(MLX5DV_CQE_RES_FORMAT_HASH, 128); }

static int cq_moderated(uint16_t period)
{
	struct ibv_modify_cq_attr attr = {
		.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { .cq_count = 8, .cq_period = period },
	};
	struct ibv_cq *made = ibv_create_cq(context, 1, NULL, NULL, 0);

	CHECK(made);
	int result = ibv_modify_cq(made, &attr);
	CHECK(!ibv_destroy_cq(made));
	return result;
}
static int cq_moderated_longest(void) { return cq_moderated(0xfff); }
static int cq_moderated_too_long(void) { return cq_moderated(0x1000); }

/* ---- shared receive queues ---- */

static int modify_srq(int mask, uint32_t max_wr, uint32_t limit)
{
	struct ibv_srq_attr attr = { .max_wr = max_wr, .srq_limit = limit };

	return outcome(ibv_modify_srq(srq, &attr, mask));
}

static int srq_resize(void) { return modify_srq(IBV_SRQ_MAX_WR, 64, 0); }
static int srq_limit(void) { return modify_srq(IBV_SRQ_LIMIT, 0, WRS / 2); }
static int srq_limit_above(void) { return modify_srq(IBV_SRQ_LIMIT, 0, 4 * WRS); }

/* ---- rules ---- */

struct rule {
	struct ibv_flow_attr attr;
	uint8_t specs[16 * sizeof(struct ibv_flow_spec)];
};

static struct rule rule(uint16_t priority)
{
	return (struct rule){
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(struct ibv_flow_attr), .priority = priority, .port = PORT },
	};
}

static void add(struct rule *rule, const void *spec, uint16_t size)
{
	memcpy((uint8_t *)rule + rule->attr.size, spec, size);
	rule->attr.size += size;
	rule->attr.num_of_specs++;
}

static void add_eth(struct rule *rule, uint16_t ethertype)
{
	struct ibv_flow_spec_eth eth = {
		.type = IBV_FLOW_SPEC_ETH, .size = sizeof eth, .val.ether_type = htobe16(ethertype),
		.mask.ether_type = ethertype ? 0xffff : 0,
	};

	add(rule, &eth, sizeof eth);
}

static void add_ipv4(struct rule *rule)
{
	struct ibv_flow_spec_ipv4 ipv4 = { .type = IBV_FLOW_SPEC_IPV4, .size = sizeof ipv4 };

	add(rule, &ipv4, sizeof ipv4);
}

static void add_tag(struct rule *rule, uint32_t tag)
{
	struct ibv_flow_spec_action_tag action = {
		.type = IBV_FLOW_SPEC_ACTION_TAG, .size = sizeof action, .tag_id = tag,
	};

	add(rule, &action, sizeof action);
}

static void add_drop(struct rule *rule)
{
	struct ibv_flow_spec_action_drop action = { .type = IBV_FLOW_SPEC_ACTION_DROP, .size = sizeof action };

	add(rule, &action, sizeof action);
}

static int try_rule(struct rule rule)
{
	errno = 0;
	struct ibv_flow *flow = ibv_create_flow(target, &rule.attr);

	if (!flow)
		return errno;
	CHECK(!ibv_destroy_flow(flow));
	return 0;
}

static int flow_priority(uint16_t priority)
{
	struct rule asked = rule(priority);

	add_eth(&asked, 0);
	return try_rule(asked);
}
static int flow_priority_last(void) { return flow_priority(15); }
static int flow_priority_above(void) { return flow_priority(16); }

static int flow_port(uint8_t port)
{
	struct rule asked = rule(0);

	asked.attr.port = port;
	add_eth(&asked, 0);
	return try_rule(asked);
}
static int flow_port_none(void) { return flow_port(0); }
static int flow_port_above(void) { return flow_port(PORT + 1); }

static int flow_specs(int count)
{
	struct rule asked = rule(0);

	for (int i = 0; i < count; i++)
		add_eth(&asked, 0);
	return try_rule(asked);
}
static int flow_specs_most(void) { return flow_specs(10); }
static int flow_specs_too_many(void) { return flow_specs(11); }

static int flow_of_type(enum ibv_flow_attr_type type, uint32_t flags)
{
	struct rule asked = rule(0);

	asked.attr.type = type;
	asked.attr.flags = flags;
	return try_rule(asked);
}
static int flow_all_default(void) { return flow_of_type(IBV_FLOW_ATTR_ALL_DEFAULT, 0); }
static int flow_all_default_passing(void)
{
	return flow_of_type(IBV_FLOW_ATTR_ALL_DEFAULT, IBV_FLOW_ATTR_FLAGS_DONT_TRAP);
}
static int flow_mc_default(void) { return flow_of_type(IBV_FLOW_ATTR_MC_DEFAULT, 0); }
static int flow_mc_default_passing(void)
{
	return flow_of_type(IBV_FLOW_ATTR_MC_DEFAULT, IBV_FLOW_ATTR_FLAGS_DONT_TRAP);
}
static int flow_passing(void) { return flow_of_type(IBV_FLOW_ATTR_NORMAL, IBV_FLOW_ATTR_FLAGS_DONT_TRAP); }
static int flow_flag_unknown(void) { return flow_of_type(IBV_FLOW_ATTR_NORMAL, 1 << 3); }
static int flow_sniffer(void) { return flow_of_type(IBV_FLOW_ATTR_SNIFFER, 0); }
static int flow_type_unknown(void) { return flow_of_type((enum ibv_flow_attr_type)4, 0); }

static int flow_tag(uint32_t tag)
{
	struct rule asked = rule(0);

	add_eth(&asked, 0);
	add_tag(&asked, tag);
	return try_rule(asked);
}
static int flow_tag_largest(void) { return flow_tag((1 << 24) - 1); }
static int flow_tag_above(void) { return flow_tag(1 << 24); }

static int flow_ethertype(uint16_t ethertype)
{
	struct rule asked = rule(0);

	add_eth(&asked, ethertype);
	add_ipv4(&asked);
	return try_rule(asked);
}
static int flow_ethertype_right(void) { return flow_ethertype(0x0800); }
static int flow_ethertype_wrong(void) { return flow_ethertype(0x86dd); }

/* A value bit outside the mask. */
static int flow_value_unmasked(void)
{
	struct rule asked = rule(0);
	struct ibv_flow_spec_eth eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof eth, .val.ether_type = htobe16(0x0800) };

	add(&asked, &eth, sizeof eth);
	return try_rule(asked);
}

static int flow_mpls(uint32_t mask)
{
	struct rule asked = rule(0);
	struct ibv_flow_spec_mpls mpls = { .type = IBV_FLOW_SPEC_MPLS, .size = sizeof mpls, .mask.label = mask };

	add(&asked, &mpls, sizeof mpls);
	return try_rule(asked);
}
static int flow_mpls_label(void) { return flow_mpls(UINT32_MAX); }
static int flow_mpls_any(void) { return flow_mpls(0); }

static int flow_esp(uint32_t spi_mask, uint32_t seq_mask)
{
	struct rule asked = rule(0);
	struct ibv_flow_spec_esp esp = {
		.type = IBV_FLOW_SPEC_ESP, .size = sizeof esp, .mask = { .spi = spi_mask, .seq = seq_mask },
	};

	add(&asked, &esp, sizeof esp);
	return try_rule(asked);
}
static int flow_esp_spi(void) { return flow_esp(UINT32_MAX, 0); }
static int flow_esp_sequence(void) { return flow_esp(0, 1); }

/* Creates a second rule with the same match as a first rule. */
static int flow_beside(void (*first)(struct rule *), void (*second)(struct rule *))
{
	struct rule one = rule(3), other = rule(3);

	add_ipv4(&one);
	first(&one);
	struct ibv_flow *flow = ibv_create_flow(target, &one.attr);
	if (!flow)
		return errno;
	add_ipv4(&other);
	second(&other);
	int result = try_rule(other);
	CHECK(!ibv_destroy_flow(flow));
	return result;
}
static void nothing(struct rule *rule) { (void)rule; }
static void tag_7(struct rule *rule) { add_tag(rule, 7); }
static void tag_8(struct rule *rule) { add_tag(rule, 8); }

static int flow_twice(void) { return flow_beside(tag_7, tag_7); }
static int flow_other_tag(void) { return flow_beside(tag_7, tag_8); }
static int flow_drop_beside_forward(void) { return flow_beside(nothing, add_drop); }
static int flow_forward_beside_drop(void) { return flow_beside(add_drop, nothing); }

static int flow_tag_beside_none(void) { return flow_beside(nothing, tag_7); }
/* A rule without a tag gets the existing tag. */
static int flow_none_beside_tag(void) { return flow_beside(tag_7, nothing); }

/* The QP is a RAW_PACKET QP, as required, but it has no receive queue as a destination of rules. */
static int flow_to_sends_only(void)
{
	struct ibv_qp *qp = make_raw(4, 0, NULL), *before = target;

	if (!qp)
		return errno;
	target = qp;
	int result = flow_priority(0);
	target = before;
	CHECK(!ibv_destroy_qp(qp));
	return result;
}

static int flow_to_no_qp(void)
{
	struct ibv_qp none = { .context = context, .handle = 0x7fffffff }, *before = target;

	target = &none;
	int result = flow_priority(0);
	target = before;
	return result;
}

/* A QP with a transport. The device has none, so it cannot be a destination of rules. */
static int qp_of_a_transport(void)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_UD, .send_cq = cq, .recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	errno = 0;
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	if (!qp)
		return errno;
	CHECK(!ibv_destroy_qp(qp));
	return 0;
}

/* ---- matchers and counters, which use ioctl() ---- */

/* Mask or value of the outer headers section, `size` bytes long. */
struct match {
	size_t size;
	uint8_t bytes[64];
};
static struct match none = { .size = 64 }, ethertype_mask = { .size = 64, .bytes = { [6] = 0xff, [7] = 0xff } };

static struct mlx5dv_flow_matcher *make_matcher(struct match *mask, uint16_t priority, uint32_t flags)
{
	struct mlx5dv_flow_matcher_attr attr = {
		.type = IBV_FLOW_ATTR_NORMAL, .flags = flags, .priority = priority, .match_criteria_enable = 1,
		.match_mask = (struct mlx5dv_flow_match_parameters *)mask,
	};

	errno = 0;
	return mlx5dv_create_flow_matcher(context, &attr);
}

/* Creates a rule with `count` actions over `matcher`, destroys both, and returns the errno. */
static int try_match(struct mlx5dv_flow_matcher *matcher, struct match *value, size_t count,
		     struct mlx5dv_flow_action_attr *actions)
{
	if (!matcher)
		return errno;
	errno = 0;
	struct ibv_flow *flow =
		mlx5dv_create_flow(matcher, (struct mlx5dv_flow_match_parameters *)value, count, actions);
	int result = flow ? 0 : errno;
	if (flow) {
		CHECK(outcome(mlx5dv_destroy_flow_matcher(matcher)) == EBUSY);
		CHECK(!ibv_destroy_flow(flow));
	}
	CHECK(!mlx5dv_destroy_flow_matcher(matcher));
	return result;
}

static struct mlx5dv_flow_action_attr miss[2] = { { .type = MLX5DV_FLOW_ACTION_DEFAULT_MISS } };
static struct match ipv4_type = { .size = 64, .bytes = { [6] = 0x08 } };

static int matcher_miss(void) { return try_match(make_matcher(&ethertype_mask, 0, 0), &ipv4_type, 1, miss); }
static int matcher_priority(void) { return try_match(make_matcher(&ethertype_mask, 16, 0), &ipv4_type, 1, miss); }
static int matcher_no_action(void) { return try_match(make_matcher(&ethertype_mask, 0, 0), &ipv4_type, 0, NULL); }
static int matcher_value_unmasked(void) { return try_match(make_matcher(&none, 0, 0), &ipv4_type, 1, miss); }
static int matcher_of_sends(void)
{
	return try_match(make_matcher(&ethertype_mask, 0, IBV_FLOW_ATTR_FLAGS_EGRESS), &ipv4_type, 1, miss);
}
static int matcher_flags(void)
{
	return try_match(make_matcher(&ethertype_mask, 0, 1 << 5), &ipv4_type, 1, miss);
}

/* `ipv4_ihl`, a field that this device cannot match. */
static int matcher_field(void)
{
	static struct match mask = { .size = 64, .bytes = { [26] = 0xf0 } };

	return try_match(make_matcher(&mask, 0, 0), &none, 1, miss);
}

static int matcher_empty_mask(void)
{
	static struct match mask = { .size = 0 };

	return try_match(make_matcher(&mask, 0, 0), &none, 1, miss);
}

static int matcher_tag(uint32_t tag)
{
	miss[1] = (struct mlx5dv_flow_action_attr){ .type = MLX5DV_FLOW_ACTION_TAG, .tag_value = tag };
	return try_match(make_matcher(&ethertype_mask, 0, 0), &ipv4_type, 2, miss);
}
static int matcher_tag_largest(void) { return matcher_tag((1 << 24) - 1); }
static int matcher_tag_above(void) { return matcher_tag(1 << 24); }

static int counters_unused(void)
{
	struct ibv_counters_init_attr attr = { 0 };
	struct ibv_counters *counters = ibv_create_counters(context, &attr);
	uint64_t number;

	if (!counters)
		return errno;
	int result = outcome(ibv_read_counters(counters, &number, 1, 0));
	CHECK(!ibv_destroy_counters(counters));
	return result;
}

/* ---- destruction of objects in use ---- */

static int busy_pd(void) { return outcome(ibv_dealloc_pd(pd)); }
static int busy_cq(void) { return outcome(ibv_destroy_cq(cq)); }
static int busy_wq(void) { return outcome(ibv_destroy_wq(wqs[0])); }

static int busy_table(void)
{
	if (target == &placeholder)
		return EPERM;
	return outcome(ibv_destroy_rwq_ind_table(table));
}

static int busy_qp(void)
{
	struct rule asked = rule(0);

	add_eth(&asked, 0);
	struct ibv_flow *flow = ibv_create_flow(target, &asked.attr);
	if (!flow)
		return errno;
	int result = outcome(ibv_destroy_qp(target));
	CHECK(!ibv_destroy_flow(flow));
	return result;
}

static int busy_srq(void)
{
	struct ibv_qp *qp = make_raw(4, 0, srq);

	if (!qp)
		return errno;
	int result = outcome(ibv_destroy_srq(srq));
	CHECK(!ibv_destroy_qp(qp));
	return result;
}

/* ---- tables of requests ---- */

enum { ROOT, USER, NET_RAW };
#define ALL_USERS(e) { (e), (e), (e) }
#define WITH_NET_RAW(e) { (e), EPERM, (e) }
#define WITH_RAWIO(e) { (e), EPERM, EPERM }
#define ROW(attempt, expected) { #attempt, attempt, expected }
#define TAKEN(attempt, expected) { #attempt "_taken", attempt, expected }

struct row {
	const char *name;
	int (*attempt)(void);
	int expected[3];
};

/* Requests to a device with all capabilities. */
static const struct row full[] = {
	TAKEN(wq_plain, ALL_USERS(0)),
	ROW(wq_delay_drop, WITH_RAWIO(0)),
	TAKEN(wq_cvlan_stripping, ALL_USERS(0)),
	TAKEN(wq_scatter_fcs, ALL_USERS(0)),
	TAKEN(wq_end_padding, ALL_USERS(0)),
	ROW(wq_flag_unknown, ALL_USERS(EOPNOTSUPP)),
	ROW(wq_too_long, ALL_USERS(EINVAL)),
	ROW(wq_without_wqes, ALL_USERS(EINVAL)),
	TAKEN(wq_written, ALL_USERS(0)),
	TAKEN(wq_strides_smallest, ALL_USERS(0)),
	TAKEN(wq_strides_largest, ALL_USERS(0)),
	ROW(wq_strides_short, ALL_USERS(EINVAL)),
	ROW(wq_strides_long, ALL_USERS(EINVAL)),
	ROW(wq_strides_few, ALL_USERS(EINVAL)),
	ROW(wq_strides_many, ALL_USERS(EINVAL)),
	TAKEN(wq_strides_not_asked_for, ALL_USERS(0)),
	ROW(wq_mask_unknown, ALL_USERS(EOPNOTSUPP)),
	TAKEN(wq_dv_strides, ALL_USERS(0)),
	ROW(wq_dv_strides_few, ALL_USERS(EINVAL)),
	ROW(wq_written_above_the_cap, ALL_USERS(EINVAL)),
	ROW(wq_written_without_wqes, ALL_USERS(EINVAL)),
	ROW(modify_wq_nothing, ALL_USERS(EINVAL)),
	ROW(modify_wq_unknown, ALL_USERS(EINVAL)),
	ROW(modify_wq_no_state, ALL_USERS(EINVAL)),
	ROW(modify_wq_end_padding, ALL_USERS(EOPNOTSUPP)),
	TAKEN(modify_wq_cvlan, ALL_USERS(0)),
	ROW(modify_wq_error_to_ready, ALL_USERS(EINVAL)),
	TAKEN(table_largest, ALL_USERS(0)),
	ROW(table_above_the_devices, ALL_USERS(EINVAL)),
	ROW(table_above_any, ALL_USERS(EINVAL)),
	ROW(rss_plain, WITH_NET_RAW(0)),
	ROW(rss_other_function, WITH_NET_RAW(EOPNOTSUPP)),
	TAKEN(rss_by_hand, WITH_NET_RAW(0)),
	ROW(rss_comp_mask, WITH_NET_RAW(EOPNOTSUPP)),
	TAKEN(rss_inner, WITH_NET_RAW(0)),
	ROW(rss_inner_bare, WITH_NET_RAW(EOPNOTSUPP)),
	ROW(rss_key_short, WITH_NET_RAW(EINVAL)),
	ROW(rss_key_long, WITH_NET_RAW(EINVAL)),
	ROW(rss_key_none, WITH_NET_RAW(EINVAL)),
	ROW(rss_both_ips, WITH_NET_RAW(EINVAL)),
	ROW(rss_both_transports, WITH_NET_RAW(EINVAL)),
	ROW(rss_spi_and_tcp, WITH_NET_RAW(EINVAL)),
	ROW(rss_spi_and_udp, WITH_NET_RAW(EINVAL)),
	ROW(rss_no_fields, WITH_NET_RAW(EINVAL)),
	TAKEN(rss_no_fields_single, WITH_NET_RAW(0)),
	ROW(rss_create_flags, WITH_NET_RAW(EINVAL)),
	TAKEN(rss_loopback_flags, WITH_NET_RAW(0)),
	ROW(rss_vendor_flags, WITH_NET_RAW(EINVAL)),
	ROW(rss_send_cq, WITH_NET_RAW(EINVAL)),
	ROW(rss_recv_wr, WITH_NET_RAW(EINVAL)),
	ROW(rss_recv_sge, WITH_NET_RAW(EINVAL)),
	ROW(rss_srq, WITH_NET_RAW(EINVAL)),
	ROW(raw_plain, WITH_NET_RAW(0)),
	ROW(raw_vendor_flags, WITH_NET_RAW(EINVAL)),
	TAKEN(raw_srq_with_sends, WITH_NET_RAW(0)),
	ROW(raw_srq_without_sends, WITH_NET_RAW(EINVAL)),
	TAKEN(raw_init_with_port, WITH_NET_RAW(0)),
	ROW(raw_init_without_port, WITH_NET_RAW(EINVAL)),
	ROW(raw_init_bad_port, WITH_NET_RAW(EINVAL)),
	TAKEN(raw_to_rts, WITH_NET_RAW(0)),
	ROW(raw_skips_init, WITH_NET_RAW(EINVAL)),
	ROW(raw_skips_rtr, WITH_NET_RAW(EINVAL)),
	ROW(raw_rtr_with_port, WITH_NET_RAW(EINVAL)),
	TAKEN(raw_scatter_fcs, WITH_NET_RAW(0)),
	TAKEN(raw_cvlan_stripping, WITH_NET_RAW(0)),
	TAKEN(mr_local, ALL_USERS(0)),
	TAKEN(mr_remote_read, ALL_USERS(0)),
	TAKEN(mr_both_writes, ALL_USERS(0)),
	ROW(mr_remote_write, ALL_USERS(EINVAL)),
	ROW(mr_remote_atomic, ALL_USERS(EINVAL)),
	TAKEN(cq_mini_hash, ALL_USERS(0)),
	TAKEN(cq_mini_checksum, ALL_USERS(0)),
	TAKEN(cq_mini_stride, ALL_USERS(0)),
	ROW(cq_mini_both, ALL_USERS(EINVAL)),
	ROW(cq_mini_none, ALL_USERS(EINVAL)),
	ROW(cq_mini_of_128, ALL_USERS(EOPNOTSUPP)),
	TAKEN(cq_plain, ALL_USERS(0)),
	ROW(cq_empty, ALL_USERS(EINVAL)),
	ROW(cq_negative, ALL_USERS(EINVAL)),
	ROW(cq_above_any, ALL_USERS(EINVAL)),
	TAKEN(cq_moderated_longest, ALL_USERS(0)),
	ROW(cq_moderated_too_long, ALL_USERS(EINVAL)),
	ROW(cq_vector, ALL_USERS(EINVAL)),
	ROW(srq_resize, ALL_USERS(EINVAL)),
	TAKEN(srq_limit, ALL_USERS(0)),
	ROW(srq_limit_above, ALL_USERS(EINVAL)),
	TAKEN(flow_priority_last, WITH_NET_RAW(0)),
	ROW(flow_priority_above, WITH_NET_RAW(ENOMEM)),
	ROW(flow_port_none, WITH_NET_RAW(EINVAL)),
	ROW(flow_port_above, WITH_NET_RAW(EINVAL)),
	TAKEN(flow_specs_most, WITH_NET_RAW(0)),
	ROW(flow_specs_too_many, WITH_NET_RAW(EINVAL)),
	TAKEN(flow_all_default, WITH_NET_RAW(0)),
	ROW(flow_all_default_passing, WITH_NET_RAW(EINVAL)),
	TAKEN(flow_mc_default, WITH_NET_RAW(0)),
	ROW(flow_mc_default_passing, WITH_NET_RAW(EINVAL)),
	TAKEN(flow_passing, WITH_NET_RAW(0)),
	ROW(flow_flag_unknown, WITH_NET_RAW(EINVAL)),
	TAKEN(flow_sniffer, WITH_NET_RAW(0)),
	ROW(flow_type_unknown, WITH_NET_RAW(EINVAL)),
	TAKEN(flow_tag_largest, WITH_NET_RAW(0)),
	ROW(flow_tag_above, WITH_NET_RAW(EINVAL)),
	TAKEN(flow_ethertype_right, WITH_NET_RAW(0)),
	ROW(flow_ethertype_wrong, WITH_NET_RAW(EINVAL)),
	ROW(flow_value_unmasked, WITH_NET_RAW(EINVAL)),
	TAKEN(flow_mpls_label, WITH_NET_RAW(0)),
	TAKEN(flow_esp_spi, WITH_NET_RAW(0)),
	ROW(flow_esp_sequence, WITH_NET_RAW(EOPNOTSUPP)),
	TAKEN(flow_twice, WITH_NET_RAW(0)),
	ROW(flow_other_tag, WITH_NET_RAW(EEXIST)),
	TAKEN(flow_none_beside_tag, WITH_NET_RAW(0)),
	ROW(flow_tag_beside_none, WITH_NET_RAW(EEXIST)),
	ROW(flow_drop_beside_forward, WITH_NET_RAW(EEXIST)),
	ROW(flow_forward_beside_drop, WITH_NET_RAW(EEXIST)),
	ROW(flow_to_sends_only, WITH_NET_RAW(EINVAL)),
	ROW(flow_to_no_qp, WITH_NET_RAW(EINVAL)),
	TAKEN(matcher_miss, WITH_NET_RAW(0)),
	ROW(matcher_priority, WITH_NET_RAW(ENOMEM)),
	ROW(matcher_no_action, WITH_NET_RAW(EINVAL)),
	ROW(matcher_value_unmasked, WITH_NET_RAW(EINVAL)),
	ROW(matcher_field, WITH_NET_RAW(EINVAL)),
	ROW(matcher_of_sends, WITH_NET_RAW(EOPNOTSUPP)),
	ROW(matcher_flags, ALL_USERS(EINVAL)),
	ROW(matcher_empty_mask, ALL_USERS(EINVAL)),
	TAKEN(matcher_tag_largest, WITH_NET_RAW(0)),
	ROW(matcher_tag_above, WITH_NET_RAW(EINVAL)),
	ROW(counters_unused, ALL_USERS(EINVAL)),
	ROW(qp_of_a_transport, ALL_USERS(EOPNOTSUPP)),
	ROW(busy_pd, ALL_USERS(EBUSY)),
	ROW(busy_cq, ALL_USERS(EBUSY)),
	ROW(busy_wq, ALL_USERS(EBUSY)),
	ROW(busy_table, WITH_NET_RAW(EBUSY)),
	ROW(busy_qp, WITH_NET_RAW(EBUSY)),
	ROW(busy_srq, WITH_NET_RAW(EBUSY)),
};

/* Requests to a device without optional capabilities, and with short CQs and tables. */
static const struct row bare[] = {
	TAKEN(wq_plain, ALL_USERS(0)),
	ROW(wq_cvlan_stripping, ALL_USERS(EOPNOTSUPP)),
	ROW(wq_scatter_fcs, ALL_USERS(EOPNOTSUPP)),
	ROW(wq_end_padding, ALL_USERS(EOPNOTSUPP)),
	/* The driver checks the privilege before the capability of the device. */
	ROW(wq_delay_drop, WITH_RAWIO(EOPNOTSUPP)),
	ROW(wq_strides_smallest, ALL_USERS(EOPNOTSUPP)),
	/* libmlx5 checks the capability of the device before it calls the kernel. */
	ROW(wq_dv_strides, ALL_USERS(EINVAL)),
	ROW(cq_mini_hash, ALL_USERS(EINVAL)),
	ROW(modify_wq_end_padding, ALL_USERS(EOPNOTSUPP)),
	ROW(modify_wq_cvlan, ALL_USERS(EOPNOTSUPP)),
	TAKEN(table_largest, ALL_USERS(0)),
	ROW(table_above_the_devices, ALL_USERS(EINVAL)),
	ROW(raw_scatter_fcs, WITH_NET_RAW(EOPNOTSUPP)),
	ROW(raw_cvlan_stripping, WITH_NET_RAW(EOPNOTSUPP)),
	/* The flag belongs to the driver, which rejects it as invalid if the device lacks the
	 * capability. */
	ROW(rss_inner, WITH_NET_RAW(EINVAL)),
	ROW(rss_inner_bare, WITH_NET_RAW(EOPNOTSUPP)),
	ROW(flow_sniffer, WITH_NET_RAW(EOPNOTSUPP)),
	ROW(flow_mpls_label, WITH_NET_RAW(EOPNOTSUPP)),
	TAKEN(flow_mpls_any, WITH_NET_RAW(0)),
	/* The driver does not check this capability; the firmware refuses. */
	ROW(flow_esp_spi, WITH_NET_RAW(EINVAL)),
	ROW(cq_moderated_longest, ALL_USERS(EOPNOTSUPP)),
	TAKEN(cq_largest, ALL_USERS(0)),
	ROW(cq_above_the_devices, ALL_USERS(EINVAL)),
};

static const char *name_of(int error)
{
	return error ? strerrorname_np(error) : "granted";
}

static int run(const struct row *rows, size_t count, int user)
{
	int wrong = 0;

	for (size_t i = 0; i < count; i++) {
		int expected = rows[i].expected[user], got = rows[i].attempt();

		printf("%s: %s", rows[i].name, name_of(got));
		if (got != expected)
			printf(", but should be %s", name_of(expected));
		putchar('\n');
		wrong += got != expected;
	}
	return wrong;
}

static void set_up(int user)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && list[0]);
	CHECK(context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	CHECK(!ibv_query_device_ex(context, NULL, &device));
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(cq = ibv_create_cq(context, 4 * WRS, NULL, NULL, 0));
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = WRS, .max_sge = 1 } };
	CHECK(srq = ibv_create_srq(pd, &srq_attr));
	for (int i = 0; i < 2; i++)
		CHECK(wqs[i] = make_wq(WRS, 0));
	CHECK(table = make_table(1));
	CHECK(single = make_table(0));
	struct ibv_qp_init_attr_ex attr = rss(IPV4);
	target = ibv_create_qp_ex(context, &attr);
	CHECK_SAYING(!target == (user == USER), "cannot create the QP for rules: %s", strerror(errno));
	if (!target) {
		placeholder.context = context;
		target = &placeholder;
	}
}

/* Destroys all objects. This fails if a refused request has left a reference. */
static void tear_down(void)
{
	if (target != &placeholder)
		CHECK(!ibv_destroy_qp(target));
	CHECK(!ibv_destroy_rwq_ind_table(table));
	CHECK(!ibv_destroy_rwq_ind_table(single));
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_wq(wqs[i]));
	CHECK(!ibv_destroy_srq(srq));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
}

int main(int argc, char **argv)
{
	static const char *const names[] = { [ROOT] = "root", [USER] = "user", [NET_RAW] = "net_raw" };
	int user = 0;

	CHECK(argc == 3);
	while (user < 3 && strcmp(argv[2], names[user]))
		user++;
	CHECK(user < 3);
	int is_bare = !strcmp(argv[1], "bare");
	CHECK(is_bare || !strcmp(argv[1], "full"));
	set_up(user);
	int wrong = is_bare ? run(bare, sizeof bare / sizeof *bare, user) : run(full, sizeof full / sizeof *full, user);
	tear_down();
	return wrong ? 1 : 0;
}
