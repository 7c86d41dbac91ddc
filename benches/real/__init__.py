"""What a user gets with a real model, by kind of request, beside plain generation."""
