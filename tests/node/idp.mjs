// A certified OpenID provider as an authorization server: HOME_PORT, KEY_ID, AUDIENCE and TTL in the environment.
import { exportJWK, generateKeyPair } from 'jose';
import Provider from 'oidc-provider';

const port = Number(process.env.HOME_PORT);
const issuer = `http://127.0.0.1:${port}`;
const scopes = ['windows:read', 'windows:write', 'sessions:write', 'context:read', 'context:write', 'tools:call', 'admin'];
const secret = (client_id, more = {}) => ({
  client_id,
  client_secret: `${client_id}-secret`,
  grant_types: ['client_credentials'],
  redirect_uris: [],
  response_types: [],
  ...more,
});
const person = {
  response_types: ['code'],
  redirect_uris: [`${new URL(process.env.AUDIENCE).origin}/console/sign-in/return`],
  grant_types: ['authorization_code'],
};
const signing = async (alg, kid) => {
  const { privateKey } = await generateKeyPair(alg, { extractable: true });
  return { ...(await exportJWK(privateKey)), alg, kid, use: 'sig' };
};

const provider = new Provider(issuer, {
  jwks: { keys: [await signing('RS256', `${process.env.KEY_ID}-rsa`), await signing('ES256', `${process.env.KEY_ID}-ec`)] },
  cookies: { keys: ['of a test'] },
  scopes: ['openid', 'offline_access', ...scopes],
  clients: [
    secret('machine'),
    secret('opaque'),
    secret('elliptic'),
    secret('gateway'),
    {
      client_id: 'desktop',
      token_endpoint_auth_method: 'none',
      application_type: 'native',
      response_types: ['code'],
      redirect_uris: ['http://127.0.0.1/callback'],
      grant_types: ['authorization_code', 'refresh_token'],
    },
    secret('console', person),
    { client_id: 'viewer', token_endpoint_auth_method: 'none', ...person },
  ],
  pkce: { required: () => true },
  issueRefreshToken: async (_ctx, client) => client.grantTypeAllowed('refresh_token'),
  features: {
    devInteractions: { enabled: true },
    clientCredentials: { enabled: true },
    introspection: { enabled: true },
    revocation: { enabled: true },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => process.env.AUDIENCE,
      useGrantedResource: () => true,
      getResourceServerInfo: (_ctx, audience, client) => ({
        scope: scopes.join(' '),
        audience,
        accessTokenFormat: client.clientId === 'opaque' ? 'opaque' : 'jwt',
        accessTokenTTL: Number(process.env.TTL ?? 300),
        jwt: { sign: { alg: client.clientId === 'elliptic' ? 'ES256' : 'RS256' } },
      }),
    },
  },
  findAccount: (_ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  extraTokenClaims: (_ctx, token) => ({ tenant: token.accountId === 'eve' ? 'other' : 'acme' }),
});
provider.listen(port, '127.0.0.1');
