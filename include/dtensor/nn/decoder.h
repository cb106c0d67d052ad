// Decoder-only language models from a configuration: Llama, Mistral, Qwen, Gemma, Mixtral, DeepSeek-V3, GPT-2 and their
// like are choices of one structure. Written in plain ATen for one device; tensor_parallel_plan(), fully_shard() and
// apply_expert_parallel() say where its parameters live.
//
// Names: embed.weight, positions.weight, layers.I.attn_norm.weight, layers.I.attn.{q,k,v,o}_proj.weight,
// layers.I.mlp_norm.weight, layers.I.mlp.{gate,up,down}_proj.weight, layers.I.moe.*, norm.weight, lm_head.weight.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/moe.h"
#include "dtensor/nn.h"
#include "dtensor/parallelize.h"
#include "dtensor/placement.h"

namespace dtensor::nn {

// What attention keeps of the tokens before: keys and values, in memory made once for all tokens that may come.

// Belongs to one rank: holds its sequences and its heads. What attention does with it is local, so that a token costs
// no decision and no collective but those of the layers around it, and, where tokens are shared out, one all_gather a
// layer.
//
// A copy has memory of its own for as many tokens, so that a text can be gone on with in several ways. A cache that has
// tokens takes further ones for the same sequences, placed as those were; one without any (truncate(0)) takes all.
class DTENSOR_API KVCache {
 public:
  // `capacity`: tokens a sequence at most. Memory is made when a layer first appends. `sequence_axis`: of the mesh;
  // its ranks hold every n-th token each, token p the rank p % n, so that a sequence may be n times as long. The axis
  // must split neither the batch nor heads, which is an error; "": each rank holds all tokens.
  KVCache(std::int64_t layers, std::int64_t capacity, std::string sequence_axis = "");
  KVCache(const KVCache& other);
  KVCache(KVCache&&) noexcept = default;
  KVCache& operator=(const KVCache& other) { return *this = KVCache(other); }
  KVCache& operator=(KVCache&&) noexcept = default;
  ~KVCache() = default;

  // As given.
  std::int64_t layers() const { return static_cast<std::int64_t>(entries_.size()); }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t length() const { return length_; }  // tokens that every layer has
  std::int64_t bytes() const;                      // on this rank

  // Local keys [batch, heads, n, E] and values [batch, heads, n, F] of the tokens from length() on; returns views of
  // all up to and with these, or of this rank's among them. An error beyond the capacity, and where they are not of the
  // sizes of those before.
  std::pair<at::Tensor, at::Tensor> append(std::int64_t layer, const at::Tensor& keys, const at::Tensor& values);
  void advance(std::int64_t count) { length_ += count; }  // once all layers have appended
  // Forgets what comes after the first `length` tokens.
  void truncate(std::int64_t length);

  // Of all tokens: [batch, heads, length, E]. DTensors where attention ran on a mesh. Collective where tokens are
  // shared out.
  at::Tensor keys(std::int64_t layer) const;
  at::Tensor values(std::int64_t layer) const;

  // Told by attention that runs on a mesh: where what this rank appends stands in the whole. An error, the same on all
  // ranks, where tokens that are kept stand otherwise.
  void set_layout(std::int64_t layer, const DeviceMesh& mesh, Placements placements, std::int64_t batch,
                  std::int64_t heads);
  // Told by attention of plain tokens: this rank has all of them. An error where tokens of a mesh are kept.
  void set_layout(std::int64_t layer);
  // Among whom the layer's tokens are shared out; none: each rank has all.
  const Communicator& sequence_group(std::int64_t layer) const;

 private:
  struct Entry {
    at::Tensor keys, values;  // [batch, heads, capacity, E or F]
    DeviceMesh mesh;
    Placements placements;
    std::int64_t batch = 0, heads = 0;
    Communicator sequence_group;
  };
  at::Tensor full(const Entry& entry, const at::Tensor& kept) const;
  std::size_t position(std::int64_t layer) const;
  // Whether the entry has memory for them.
  static bool is_kept(const Entry& entry, const at::Tensor& keys, const at::Tensor& values);

  std::vector<Entry> entries_;
  std::int64_t capacity_, length_ = 0;
  std::string sequence_axis_;
};

// What a norm computes.
enum class NormKind : std::uint8_t {
  rms,         // x / rms(x) * w (arXiv:1910.07467)
  rms_offset,  // x / rms(x) * (1 + w), as in Gemma
  layer,       // with a bias
};
// Of the MLP.
enum class Nonlinearity : std::uint8_t { silu, gelu, gelu_tanh, relu };

// Keys and values through a bottleneck (DeepSeek-V2, arXiv:2405.04434): x is projected to `kv_rank` numbers, from which
// each head's keys and values are made, and to `rope_size` numbers of a key that all heads share and positions turn.
struct LatentAttention {
  std::int64_t q_rank = 0;  // queries through a bottleneck too; 0: not
  // The bottleneck of keys and values; sizes of a head's turned part, of the rest, and of its values.
  std::int64_t kv_rank = 0, rope_size = 0, nope_size = 0, value_size = 0;
};

// Low-rank adapters (LoRA, arXiv:2106.09685): y + alpha / rank * B A x, A uniform as a Linear's weight, B zero.
struct LoraOptions {
  std::int64_t rank = 0;  // 0: none
  // The adapter's weight is alpha / rank.
  double alpha = 1;
  std::vector<std::string> targets = {"q_proj", "v_proj"};  // last names of the projections that have one
};

// All choices of a decoder.
struct DTENSOR_API DecoderConfig {
  // Words, features of a token, layers, features inside an MLP.
  std::int64_t vocabulary = 0, hidden = 0, layers = 0, ffn = 0;
  std::int64_t heads = 1, kv_heads = 0;  // kv_heads 0: as many; fewer: groups of query heads share keys and values
  std::int64_t head_size = 0;            // 0: hidden / heads
  std::int64_t learned_positions = 0;    // rows of a table of positions that is added to the embedding; 0: none
  // Of all norms, and what is added to the mean square.
  NormKind norm = NormKind::rms;
  double norm_eps = 1e-6;
  bool post_norms = false;  // of what attention and MLP put out too, before it is added (Gemma 2 and 3)
  bool qk_norm = false;     // of each head's query and key (Qwen 3, Gemma 3)
  // Biases of the projections.
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  // Of the MLP.
  Nonlinearity activation = Nonlinearity::silu;
  bool gated = true;                                // down(activation(gate(x)) * up(x)); else down(activation(up(x)))
  bool tied = false;                                // the head's weight is the embedding's
  double embedding_scale = 1;                       // of the embedding, rounded to its dtype (Gemma)
  double attention_scale = 0;                       // of scores; 0: 1 / sqrt(head_size)
  double attention_softcap = 0, logit_softcap = 0;  // c tanh(x / c) of scores, of logits; 0: none
  std::vector<RopeOptions> ropes = {};              // those that layers name
  // What differs between layers.
  struct Layer {
    std::int64_t window = 0;  // > 0: a token sees the last `window` tokens, itself included
    std::int64_t rope = 0;    // of `ropes`; -1: none
    bool experts = false;     // in the place of the MLP
  };
  std::vector<Layer> layer = {};  // one a layer; empty: all by default, without rope where there is none
  // In the place of projections to heads.
  std::optional<LatentAttention> latent = {};
  std::optional<MoeOptions> experts = {};  // hidden and tensor are the model's
  // Of all layers.
  LoraOptions lora = {};
  at::TensorOptions tensor = {};  // of the parameters

  // With defaults put in; an error, naming both numbers, where fields contradict each other.
  DecoderConfig checked() const;
};

// A norm over the last dimension.
class DTENSOR_API Norm final : public Module {
 public:
  Norm(std::int64_t size, NormKind kind, double eps, at::TensorOptions options);
  // [..., features].
  at::Tensor forward(const at::Tensor& x) const;
  void reset_parameters() override;
  // Parameters; undefined: none.
  at::Tensor weight, bias;

 private:
  std::int64_t size_;
  NormKind kind_;
  double eps_;
};

// A linear layer, weight [out, in], that may have an adapter lora_a [rank, in], lora_b [out, rank].
class DTENSOR_API Projection final : public Module {
 public:
  Projection(std::int64_t in, std::int64_t out, bool bias, at::TensorOptions options);
  void adapt(std::int64_t rank, double alpha);  // before the model is placed
  void reset_adapter();                         // fills it as at first; nothing where there is none
  // [..., in] to [..., out].
  at::Tensor forward(const at::Tensor& x) const;
  void reset_parameters() override;
  std::int64_t output_dim(const std::string& parameter) const override;
  std::int64_t input_dim(const std::string& parameter) const override;
  // Parameters; undefined: none.
  at::Tensor weight, bias, lora_a, lora_b;
  // The weight with the adapter in it; the weight itself where there is none.
  at::Tensor merged() const;

 private:
  double lora_scale_ = 0;
};

// What all layers of a pass share.
struct DecoderPass {
  KVCache* cache = nullptr;            // null: the tokens are all there are
  std::int64_t first = 0;              // position of the first token
  std::vector<Rope::Angles> angles{};  // one for each of the configuration's ropes
};

// Of one layer: heads, groups or a bottleneck, positions, window, cache.
class DTENSOR_API DecoderAttention final : public Module {
 public:
  DecoderAttention(const DecoderConfig& config, std::int64_t layer);
  at::Tensor forward(const at::Tensor& x, const DecoderPass& pass) const;  // x: [batch, sequence, hidden]

 private:
  struct Projected;
  Projected project(const at::Tensor& x) const;
  at::Tensor with_cache(const Projected& p, const DecoderPass& pass) const;
  at::Tensor fold_heads_into_batch(const Projected& p, const DecoderPass& pass) const;
  at::Tensor normed(const Norm* norm, const at::Tensor& x) const;

  DecoderConfig config_;
  std::int64_t layer_;
  Rope rope_;
  std::unique_ptr<Projection> q_proj_, k_proj_, v_proj_;  // without a bottleneck
  std::unique_ptr<Projection> q_a_proj_, q_b_proj_, kv_a_proj_, kv_b_proj_;
  std::unique_ptr<Norm> q_norm_, k_norm_, q_a_norm_, kv_a_norm_;
  Projection o_proj_;
};

// The MLP of a layer.
class DTENSOR_API FeedForward final : public Module {
 public:
  explicit FeedForward(const DecoderConfig& config);
  // [..., hidden].
  at::Tensor forward(const at::Tensor& x) const;

 private:
  Nonlinearity activation_;
  std::unique_ptr<Projection> gate_proj_;
  Projection up_proj_, down_proj_;
};

// Attention and MLP or experts, with their norms, added to the input.
class DTENSOR_API DecoderBlock final : public Module {
 public:
  DecoderBlock(const DecoderConfig& config, std::int64_t layer);
  // Of forward().
  struct Output {
    // As x.
    at::Tensor y;
    at::Tensor loss;  // of the router; undefined: none
  };
  // x: [batch, sequence, hidden].
  Output forward(const at::Tensor& x, const DecoderPass& pass) const;

 private:
  Norm attn_norm_;
  DecoderAttention attn_;
  std::unique_ptr<Norm> attn_post_norm_;
  Norm mlp_norm_;
  std::unique_ptr<FeedForward> mlp_;
  std::unique_ptr<MixtureOfExperts> moe_;
  std::unique_ptr<Norm> mlp_post_norm_;
};

// Embedding, blocks, norm and head.
class DTENSOR_API Decoder final : public Module {
 public:
  explicit Decoder(const DecoderConfig& config);
  // What it was made from, and its layers.
  const DecoderConfig& config() const { return config_; }
  const std::vector<std::unique_ptr<DecoderBlock>>& blocks() const { return blocks_; }

  // ids: int64 [batch, sequence], positions from 0 on, or from cache->length() on, which grows by the sequence. Logits
  // [batch, sequence, vocabulary] in the parameters' dtype.
  at::Tensor forward(const at::Tensor& ids, KVCache* cache = nullptr) const { return head(hidden(ids, cache)); }
  // The same in two: what the head sees, [batch, sequence, hidden], of which a generator needs the last token only.
  // Routers' losses are added to `losses`, where it is given.
  at::Tensor hidden(const at::Tensor& ids, KVCache* cache = nullptr, std::vector<at::Tensor>* losses = nullptr) const;
  at::Tensor head(const at::Tensor& hidden) const;

 private:
  DecoderConfig config_;
  std::vector<Rope> ropes_;
  Embedding embed_;
  std::unique_ptr<Embedding> positions_;
  std::vector<std::unique_ptr<DecoderBlock>> blocks_;
  Norm norm_;
  Projection lm_head_;
};

// Embedding and head split by words, attention by groups of heads that share keys (whole ones: no head is divided), the
// MLP by its hidden features: two all-reduces a layer each way. Experts are left to apply_expert_parallel().
// `gather_logits`: the head's output is whole on every rank, else split by words.
DTENSOR_API ParallelPlan tensor_parallel_plan(const DecoderConfig& config, bool gather_logits = true);

}  // namespace dtensor::nn
