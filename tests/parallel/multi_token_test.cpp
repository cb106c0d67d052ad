// Multi-token prediction on split sequences. Only the targets k tokens ahead cross the boundary between two ranks.
// Every token that has a target counts once, on any rank.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/dtensor.h"
#include "dtensor/events.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

constexpr std::int64_t kBatch = 2, kHidden = 5, kWords = 7, kAhead = 3, kIgnored = -100;

// The tokens k positions later; ignored behind the end.
at::Tensor ahead(const at::Tensor& ids, std::int64_t k) { return at::constant_pad_nd(ids, {-k, k}, kIgnored); }

at::Tensor distance_loss(const at::Tensor& x, const at::Tensor& head, const at::Tensor& ids, std::int64_t k) {
  return at::cross_entropy_loss(at::linear(x, head).flatten(0, 1), ahead(ids, k).flatten(), {}, at::Reduction::Mean,
                                kIgnored);
}

at::Tensor multi_token_loss(const at::Tensor& x, const std::vector<at::Tensor>& heads, const at::Tensor& ids) {
  at::Tensor loss;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const auto one = distance_loss(x, heads[h], ids, static_cast<std::int64_t>(h) + 1);
    loss = loss.defined() ? loss + one : one;
  }
  return loss;
}

// The same loss token by token, without a shift and without ATen's loss.
at::Tensor loss_by_token(const at::Tensor& x, const std::vector<at::Tensor>& heads, const at::Tensor& ids) {
  auto loss = at::zeros({}, at::kDouble);
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const auto rows = ids.size(1) - static_cast<std::int64_t>(h) - 1;
    auto sum = at::zeros({}, at::kDouble);
    for (std::int64_t b = 0; b < ids.size(0); ++b) {
      for (std::int64_t i = 0; i < rows; ++i) {
        const auto scores = heads[h].mv(x[b][i]);
        const auto target = ids[b][i + static_cast<std::int64_t>(h) + 1].item<std::int64_t>();
        sum = sum + scores.logsumexp(0) - scores[target];
      }
    }
    loss = loss + sum / static_cast<double>(rows * ids.size(0));
  }
  return loss;
}

std::vector<at::Tensor> leaves(const at::Tensor& x, const std::vector<at::Tensor>& heads) {
  std::vector<at::Tensor> all{x};
  all.insert(all.end(), heads.begin(), heads.end());
  return all;
}

TEST(MultiToken, TargetsAcrossRankBoundariesCountOnce) {
  for (const std::int64_t length : {4, 5, 9, 16}) {
    Draw draw(static_cast<std::uint64_t>(length));
    const auto x = draw.normal({kBatch, length, kHidden}).requires_grad_();
    const auto ids = draw.integers({kBatch, length}, kWords);
    std::vector<at::Tensor> heads;
    for (int h = 0; h < kAhead; ++h) heads.push_back(draw.normal({kWords, kHidden}).requires_grad_());
    const auto wanted = loss_by_token(x, heads, ids);
    const auto gradients = torch::autograd::grad({wanted}, leaves(x, heads));
    for (const std::int64_t ranks : {2, 3, 4}) {
      for (const auto& sequence : {Shard(1), ZigzagShard(1)}) {
        on_mesh({ranks}, [&](const DeviceMesh& mesh) {
          const auto place = [&](const at::Tensor& t, const Placement& p) {
            return at::Tensor(distribute_tensor(t.detach(), mesh, {p}));
          };
          const auto mine = place(x, sequence).requires_grad_();
          std::vector<at::Tensor> own;
          for (const auto& head : heads) own.push_back(place(head, Replicate()).requires_grad_());
          const auto loss = multi_token_loss(mine, own, place(ids, sequence));
          const auto what = c10::str(length, " tokens on ", ranks, " ranks ", to_string(Placements{sequence}));
          expect_close(loss.detach(), wanted.detach(), what);
          const auto found = torch::autograd::grad({loss}, leaves(mine, own));
          for (std::size_t i = 0; i < found.size(); ++i) expect_close(found[i], gradients[i], what);
        });
      }
    }
  }
}

// Only the k rows after each segment of this rank that another rank's segment follows are received. The loss is one
// sum.
TEST(MultiToken, OnlyRowsAfterTheBoundaryAreCommunicated) {
  const std::int64_t length = 48, ranks = 4;
  for (const bool zigzag : {false, true}) {
    on_mesh({ranks}, [&](const DeviceMesh& mesh) {
      const auto rank = mesh.communicator().rank();
      const auto sequence = zigzag ? ZigzagShard(1) : Shard(1);
      const auto ids = distribute_tensor(Draw(1).integers({kBatch, length}, kWords), mesh, {sequence});
      const auto x = distribute_tensor(Draw(2).normal({kBatch, length, kHidden}), mesh, {sequence});
      const auto head = distribute_tensor(Draw(3).normal({kWords, kHidden}), mesh, {Replicate()});
      const auto boundaries = zigzag ? (rank == 0 || rank == ranks - 1 ? 1 : 2) : (rank == ranks - 1 ? 0 : 1);
      for (std::int64_t k = 1; k <= kAhead; ++k) {
        std::int64_t bytes = 0, of_loss = 0;
        const EventListener listener([&](const Event& e) { bytes += e.bytes; }, {Event::Kind::collective});
        const auto targets = ahead(ids, k);
        EXPECT_EQ(DTensor(targets).placements(), Placements{sequence});
        EXPECT_EQ(bytes, boundaries * k * kBatch * 8) << k << " " << zigzag;
        bytes = 0;
        DTensor(distance_loss(x, head, ids, k)).full_tensor();
        of_loss = bytes - boundaries * k * kBatch * 8;
        EXPECT_LE(of_loss, 64) << k << " " << zigzag;  // Sums of losses and of weights.
      }
    });
  }
}

}  // namespace
}  // namespace dtensor::test
