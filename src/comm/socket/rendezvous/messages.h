// Messages of the rendezvous. Each has a fixed size, or a header of a fixed size that is checked before the rest is
// read. Nothing is encrypted: the secret keeps out those who can connect, not those who can read the network.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace dtensor::sockets {

using Digest = std::array<std::uint8_t, 32>;  // of HMAC-SHA256; also a nonce
using Token = std::array<std::uint8_t, 16>;

inline constexpr std::uint64_t kJoinMagic = 0x64743a6a6f696e31;   // "dt:join1"
inline constexpr std::uint64_t kHelloMagic = 0x64743a6d65657432;  // "dt:meet2"
inline constexpr std::uint32_t kLongestText = 4096;

// The first message of a rank to rank 0, which answers with Replies.
struct Join {
  std::uint64_t magic = kJoinMagic, job = 0;
  std::uint32_t size = 0, rank = 0;
  Digest nonce{};
  std::uint64_t has_secret = 0;
};

// What a rank tells the others about itself. Rank 0 chooses the token, with which it presents itself to them.
struct Member {
  Token token{};
  std::uint64_t host_id = 0;  // equal for the processes of one host
  std::uint32_t port = 0, pid = 0;
  char host[64] = {};  // empty for rank 0: the address at which the others reached it
  char name[64] = {};  // of its Unix socket
};

// The second message of a rank to rank 0: the answer to a challenge.
struct Answer {
  Member member;
  Digest proof{};  // zero without a secret
};

struct Reply {
  enum Kind : std::uint32_t {
    challenge,  // `digest` is a nonce
    admitted,   // `digest` is rank 0's proof; zero without a secret
    other_job,  // this port serves another job
    notice,     // followed by a text: whom rank 0 waits for
    error,      // followed by a text: the rendezvous failed
    table       // followed by the Member of each rank: all have joined
  };
  std::uint64_t magic = kJoinMagic;
  std::uint32_t kind = challenge, bytes = 0;
  Digest digest{};
};

// The first message in each direction between two ranks.
struct Hello {
  std::uint64_t magic = kHelloMagic;
  std::uint32_t from = 0, to = 0;
  Token token{};
  std::int64_t pid = 0;
  std::uint64_t cookie_address = 0, cookie = 0;  // whether the other can read this process's memory
  std::uint64_t unused = 0;
};
static_assert(sizeof(Join) == 64 && sizeof(Hello) == 64, "a listener reads 64 bytes before it knows which one it is");
static_assert(sizeof(Member) == 160 && sizeof(Answer) == 192 && sizeof(Reply) == 48);

template <class T>
std::string_view bytes_of(const T& message) {
  static_assert(std::has_unique_object_representations_v<T>);
  return {reinterpret_cast<const char*>(&message), sizeof message};
}
template <class T>
T read_as(std::string_view bytes) {  // `bytes` has the size of T
  static_assert(std::is_trivially_copyable_v<T>);
  T message;
  std::memcpy(static_cast<void*>(&message), bytes.data(), sizeof message);
  return message;
}
template <std::size_t N>
std::string text_of(const char (&text)[N]) {  // it may lack the terminating 0
  return {text, strnlen(text, N)};
}

}  // namespace dtensor::sockets
