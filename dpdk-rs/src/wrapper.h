#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_dev.h>

/* DPDK's inline functions, as functions. */
int isthmus_errno(void);
uint16_t isthmus_receive(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n, uint16_t *broken);
uint16_t isthmus_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n);
struct rte_mbuf *isthmus_alloc(struct rte_mempool *pool);
void isthmus_free(struct rte_mbuf *m);
struct rte_mbuf *isthmus_copy(const struct rte_mbuf *m, struct rte_mempool *pool);

/* Leaves the UDP checksum to the device: `family` is RTE_MBUF_F_TX_IPV4 or _IPV6; the headers before UDP's have these lengths. */
void isthmus_leave_udp(struct rte_mbuf *m, uint64_t family, uint16_t l2, uint16_t l3);

/* Macros that bindings do not evaluate. */
static const uint64_t ISTHMUS_RX_CHECKSUMS = RTE_ETH_RX_OFFLOAD_CHECKSUM;
static const uint64_t ISTHMUS_TX_IPV4 = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
static const uint64_t ISTHMUS_TX_UDP = RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
static const uint64_t ISTHMUS_RSS = RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_SCTP;
static const uint16_t ISTHMUS_ALL_PORTS = RTE_ETH_ALL;
static const uint32_t ISTHMUS_MQ_RSS = RTE_ETH_MQ_RX_RSS;
