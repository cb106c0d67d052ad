// Secrets come from the environment; proofs are keyed digests.
#include "comm/socket/rendezvous/secret.h"

#include <sys/random.h>

#include <fstream>
#include <iterator>

#include "comm/launch/launch_flags.h"
#include "comm/libcrypto.h"
#include "dtensor/comm.h"

namespace dtensor::sockets {
namespace {

std::string content_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  text.erase(text.find_last_not_of("\r\n") + 1);
  if (!text.empty()) return text;
  throw LaunchError("DTENSOR_SECRET_FILE: expected a file with a secret, but " + file + " is empty or not readable");
}

}  // namespace

std::string job_secret() {
  const std::string secret = environment_variable("DTENSOR_SECRET"), file = environment_variable("DTENSOR_SECRET_FILE");
  if (file.empty()) return secret;
  if (!secret.empty()) throw LaunchError("DTENSOR_SECRET and DTENSOR_SECRET_FILE are both set; set one of them");
  return content_of(file);
}

Digest keyed_digest(const std::string& secret, std::string_view text) {
  const Libcrypto& crypto = libcrypto();
  Digest digest{};
  unsigned bytes = digest.size();
  const auto* data = reinterpret_cast<const unsigned char*>(text.data());
  const auto* made = crypto.hmac(crypto.sha256(), secret.data(), static_cast<int>(secret.size()), data, text.size(),
                                 digest.data(), &bytes);
  if (made == nullptr) throw CommError("OpenSSL's libcrypto could not compute HMAC-SHA256");
  return digest;
}

bool equal_digests(const Digest& a, const Digest& b) {
  unsigned different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) different |= static_cast<unsigned>(a[i] ^ b[i]);
  return different == 0;
}

void fill_random(void* data, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t n = getrandom(static_cast<char*>(data) + at, bytes - at, 0);
    if (n > 0) at += static_cast<std::size_t>(n);
  }
}

}  // namespace dtensor::sockets
