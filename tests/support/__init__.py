"""What tests share: harness, fake services, real engines, servers, and the original."""
